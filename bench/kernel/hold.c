// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Holds packets up, or drops them, in one function of the network stack, for chosen network namespaces: the faults of SafeTimer's Table 1 (§6.2)
 * where the paper instruments the kernel. A test's tool, for a guest kernel that is thrown away (Debian's 6.1); nothing of FiDe needs it.
 *
 *	open /proc/fide-hold			one at a time: another one gets EBUSY
 *	write "NAMESPACE\n"			its inode number; up to eight
 *	write "FUNCTION delay|drop\n"		from now on; once
 *	close					what was held goes on, in its order, before close returns
 *
 * So a fault ends with the process that made it, however that ends. Only packets of these namespaces are held: the rest of the machine goes on.
 *
 * The function's first instruction calls ftrace on every stock kernel; there the call is turned to a function of ours, as a live patch does. It
 * keeps the packet with the other arguments, or goes on into the function itself, which is told by the caller being this module. That must not
 * be a tail call, or the caller would be another one: -fno-optimize-sibling-calls in Kbuild.
 */
#include <linux/ftrace.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/proc_fs.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/socket.h>
#include <linux/uaccess.h>
#include <net/ip.h>
#include <net/sock.h>
#include <net/udp.h>

#define NAMESPACES 8
/* More than any row brings in its time; beyond it packets pass. */
#define HELD_MAX 100000

/* Where the kernel's own function is, found by name. */
static int (*ip_rcv_)(struct sk_buff *, struct net_device *, struct packet_type *, struct net_device *);
static void (*ip_list_rcv_)(struct list_head *, struct packet_type *, struct net_device *);
static int (*ip_mc_output_)(struct net *, struct sock *, struct sk_buff *);
static int (*enqueue_to_backlog_)(struct sk_buff *, int, unsigned int *);
static int (*security_socket_sendmsg_)(struct socket *, struct msghdr *, int);

/* A packet that waits, and what its function was called with. */
struct held {
	struct list_head list;
	struct sk_buff *skb;
	struct net_device *dev; /* where it was: stays for as long */
	void (*go_on)(struct held *held);
	void *a, *b;
	long c;
};

static DEFINE_SPINLOCK(lock); /* of the list, its length, and the end of a fault; taken with bottom halves off */
static LIST_HEAD(waiting);
static unsigned int waiting_n;
static bool active, drops;
static unsigned int namespaces[NAMESPACES];
static DECLARE_WAIT_QUEUE_HEAD(over);

static bool chosen(const struct net *net)
{
	int i;

	if (READ_ONCE(active))
		for (i = 0; i < NAMESPACES && namespaces[i]; i++)
			if (net->ns.inum == namespaces[i])
				return true;
	return false;
}

/* Keeps a packet; false when it must go on now. */
static bool keep(struct sk_buff *skb, void (*go_on)(struct held *), void *a, void *b, long c)
{
	struct held *held = kmalloc(sizeof(*held), GFP_ATOMIC);
	bool kept = false;

	if (held) {
		*held = (struct held){ .skb = skb, .dev = skb->dev, .go_on = go_on, .a = a, .b = b, .c = c };
		/* Routes are borrowed for as long as the caller's RCU section lasts. */
		skb_dst_force(skb);
		spin_lock_bh(&lock);
		if (active && waiting_n < HELD_MAX) {
			list_add_tail(&held->list, &waiting);
			waiting_n++;
			dev_hold(held->dev);
			kept = true;
		}
		spin_unlock_bh(&lock);
	}
	if (!kept)
		kfree(held);
	return kept;
}

/* ---- Receiving, from the device upwards ------------------------------------------------------------------------------------------ */

static void gro_on(struct held *h)
{
	netif_receive_skb(h->skb); /* GRO itself belongs to the poll that is over */
}

static gro_result_t gro_held(struct napi_struct *napi, struct sk_buff *skb)
{
	if (chosen(dev_net(skb->dev)) && keep(skb, gro_on, NULL, NULL, 0))
		return GRO_NORMAL;
	return napi_gro_receive(napi, skb);
}

static void backlog_on(struct held *h)
{
	unsigned int queue_tail;

	enqueue_to_backlog_(h->skb, h->c, &queue_tail);
}

static int backlog_held(struct sk_buff *skb, int cpu, unsigned int *queue_tail)
{
	if (chosen(dev_net(skb->dev))) {
		if (drops) {
			/* Counted where the stage counts what it has no room for: those who watch these counters shall see it. */
			preempt_disable();
			per_cpu(softnet_data, cpu).dropped++;
			preempt_enable();
			dev_core_stats_rx_dropped_inc(skb->dev);
			kfree_skb(skb);
			return NET_RX_DROP;
		}
		if (keep(skb, backlog_on, NULL, NULL, cpu))
			return NET_RX_SUCCESS;
	}
	return enqueue_to_backlog_(skb, cpu, queue_tail);
}

static void ip_on(struct held *h)
{
	ip_rcv_(h->skb, h->skb->dev, h->a, h->b);
}

static int ip_held(struct sk_buff *skb, struct net_device *dev, struct packet_type *type, struct net_device *orig_dev)
{
	if (chosen(dev_net(dev)) && keep(skb, ip_on, type, orig_dev, 0))
		return NET_RX_SUCCESS;
	return ip_rcv_(skb, dev, type, orig_dev);
}

/* The same stage, for what a poll brings at once. */
static void ip_list_held(struct list_head *head, struct packet_type *type, struct net_device *orig_dev)
{
	struct sk_buff *skb, *next;

	list_for_each_entry_safe(skb, next, head, list) {
		if (!chosen(dev_net(skb->dev)))
			continue;
		skb_list_del_init(skb);
		if (!keep(skb, ip_on, type, orig_dev, 0))
			ip_rcv_(skb, skb->dev, type, orig_dev);
	}
	ip_list_rcv_(head, type, orig_dev);
}

static void socket_on(struct held *h)
{
	struct sock *sk = h->a;

	if (__udp_enqueue_schedule_skb(sk, h->skb))
		kfree_skb(h->skb);
	sock_put(sk);
}

static int socket_held(struct sock *sk, struct sk_buff *skb)
{
	if (chosen(sock_net(sk))) {
		if (drops) {
			atomic_inc(&sk->sk_drops); /* as a full buffer; the caller frees and counts the rest */
			return -ENOMEM;
		}
		sock_hold(sk);
		if (keep(skb, socket_on, sk, NULL, 0))
			return 0;
		sock_put(sk);
	}
	return __udp_enqueue_schedule_skb(sk, skb);
}

/* ---- Sending, from the call downwards -------------------------------------------------------------------------------------------- */

/* What sock_sendmsg calls first: it is itself inlined into sendto, though not into sendmmsg. */
static int call_held(struct socket *sock, struct msghdr *msg, int size)
{
	/* The control sockets of agents are no part of this. */
	if (chosen(sock_net(sock->sk)) && sock->sk->sk_family != AF_UNIX && sock->sk->sk_family != AF_NETLINK &&
	    wait_event_killable(over, !READ_ONCE(active)))
		return -EINTR;
	return security_socket_sendmsg_(sock, msg, size);
}

static void output_on(struct held *h)
{
	int (*output)(struct net *, struct sock *, struct sk_buff *) = (void *)h->c;

	output(h->a, h->b, h->skb);
	if (h->b)
		sock_put(h->b);
}

static int output_held(struct net *net, struct sock *sk, struct sk_buff *skb, long output)
{
	if (drops) {
		kfree_skb(skb);
		return -EPERM; /* as for a filter's drop: the sender sees it */
	}
	/* Sockets of requests and of lingering connections are counted otherwise; UDP's, raw and full TCP sockets go by this. */
	if (sk && (!sk_fullsock(sk) || !refcount_inc_not_zero(&sk->sk_refcnt)))
		return -EAGAIN;
	if (keep(skb, output_on, net, sk, output))
		return 0;
	if (sk)
		sock_put(sk);
	return -EAGAIN;
}

static int ip_output_held(struct net *net, struct sock *sk, struct sk_buff *skb)
{
	int done = chosen(net) ? output_held(net, sk, skb, (long)ip_output) : -EAGAIN;

	return done == -EAGAIN ? ip_output(net, sk, skb) : done;
}

static int ip_mc_output_held(struct net *net, struct sock *sk, struct sk_buff *skb)
{
	int done = chosen(net) ? output_held(net, sk, skb, (long)ip_mc_output_) : -EAGAIN;

	return done == -EAGAIN ? ip_mc_output_(net, sk, skb) : done;
}

static void queue_on(struct held *h)
{
	__dev_queue_xmit(h->skb, h->a);
}

static int queue_held(struct sk_buff *skb, struct net_device *sb_dev)
{
	if (chosen(dev_net(skb->dev)) && keep(skb, queue_on, sb_dev, NULL, 0))
		return NET_XMIT_SUCCESS;
	return __dev_queue_xmit(skb, sb_dev);
}

/* ---- Turning calls ---------------------------------------------------------------------------------------------------------------- */

struct point {
	const char *stage, *name;
	void *ours;
	bool can_drop;
	struct ftrace_ops ops;
	bool turned;
};

static void notrace turn(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops, struct ftrace_regs *regs)
{
	struct point *point = container_of(ops, struct point, ops);

	if (!within_module(parent_ip, THIS_MODULE))
		ftrace_instruction_pointer_set(regs, (unsigned long)point->ours);
}

#define POINT(stage_, name_, ours_, can_drop_)                                                                                      \
	{                                                                                                                           \
		.stage = #stage_, .name = #name_, .ours = ours_, .can_drop = can_drop_,                                             \
		.ops = { .func = turn, .flags = FTRACE_OPS_FL_SAVE_REGS | FTRACE_OPS_FL_IPMODIFY },                                 \
	}

/* A stage may have two functions. */
static struct point points[] = {
	POINT(napi_gro_receive, napi_gro_receive, gro_held, false),
	POINT(enqueue_to_backlog, enqueue_to_backlog, backlog_held, true),
	POINT(ip_rcv, ip_rcv, ip_held, false),
	POINT(ip_rcv, ip_list_rcv, ip_list_held, false),
	POINT(udp_enqueue, __udp_enqueue_schedule_skb, socket_held, true),
	POINT(sock_sendmsg, security_socket_sendmsg, call_held, false),
	POINT(ip_output, ip_output, ip_output_held, true),
	POINT(ip_output, ip_mc_output, ip_mc_output_held, true),
	POINT(dev_queue_xmit, __dev_queue_xmit, queue_held, false),
};

static void turn_back(void)
{
	struct point *point;

	for (point = points; point < points + ARRAY_SIZE(points); point++) {
		if (!point->turned)
			continue;
		unregister_ftrace_function(&point->ops);
		ftrace_set_filter(&point->ops, NULL, 0, 1);
		point->turned = false;
	}
}

static int begin(const char *stage, bool drop)
{
	struct point *point;
	int error = -ENOENT;

	drops = drop;
	for (point = points; point < points + ARRAY_SIZE(points); point++) {
		if (strcmp(point->stage, stage))
			continue;
		error = drop && !point->can_drop ? -EOPNOTSUPP : 0;
		error = error ?: ftrace_set_filter(&point->ops, (unsigned char *)point->name, strlen(point->name), 1);
		error = error ?: register_ftrace_function(&point->ops);
		point->turned = !error;
		if (error)
			break;
	}
	if (error)
		turn_back();
	else
		WRITE_ONCE(active, true);
	return error;
}

/* What waits goes on in its order, and what comes meanwhile behind it. */
static void end(void)
{
	struct held *held;

	do {
		local_bh_disable();
		rcu_read_lock();
		spin_lock(&lock);
		held = list_first_entry_or_null(&waiting, struct held, list);
		if (held) {
			list_del(&held->list);
			waiting_n--;
		} else {
			WRITE_ONCE(active, false);
		}
		spin_unlock(&lock);
		if (held) {
			struct net_device *dev = held->dev;

			held->go_on(held);
			dev_put(dev);
		}
		rcu_read_unlock();
		local_bh_enable();
		kfree(held);
		cond_resched();
	} while (held);
	wake_up_all(&over);
	turn_back();
	memset(namespaces, 0, sizeof(namespaces));
}

/* ---- The file --------------------------------------------------------------------------------------------------------------------- */

static atomic_t taken;

static int hold_open(struct inode *inode, struct file *file)
{
	return atomic_cmpxchg(&taken, 0, 1) ? -EBUSY : 0;
}

static int hold_release(struct inode *inode, struct file *file)
{
	end();
	atomic_set(&taken, 0);
	return 0;
}

static ssize_t hold_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	char text[64], stage[32], what[8];
	unsigned int inum, i;
	int error;

	if (size >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, from, size))
		return -EFAULT;
	text[size] = 0;
	if (active)
		return -EBUSY;
	if (!kstrtouint(text, 10, &inum) && inum) {
		for (i = 0; i < NAMESPACES; i++) {
			if (namespaces[i])
				continue;
			namespaces[i] = inum;
			return size;
		}
		return -ENOSPC;
	}
	if (sscanf(text, "%31s %7s", stage, what) != 2 || (strcmp(what, "delay") && strcmp(what, "drop")))
		return -EINVAL;
	error = begin(stage, !strcmp(what, "drop"));
	return error ?: size;
}

static const struct proc_ops hold_file = {
	.proc_open = hold_open,
	.proc_release = hold_release,
	.proc_write = hold_write,
};

/* Not every function here is exported to modules; a kprobe finds them all, where the kernel has kprobes. */
static void *find(const char *name)
{
	struct kprobe probe = { .symbol_name = name };
	int error = register_kprobe(&probe);
	void *at = probe.addr;

	if (error) {
		pr_err("fide-hold: no %s in this kernel: %d\n", name, error);
		return NULL;
	}
	unregister_kprobe(&probe);
	return at;
}

static int __init hold_init(void)
{
	ip_rcv_ = find("ip_rcv");
	ip_list_rcv_ = find("ip_list_rcv");
	ip_mc_output_ = find("ip_mc_output");
	enqueue_to_backlog_ = find("enqueue_to_backlog");
	security_socket_sendmsg_ = find("security_socket_sendmsg");
	if (!ip_rcv_ || !ip_list_rcv_ || !ip_mc_output_ || !enqueue_to_backlog_ || !security_socket_sendmsg_)
		return -ENOENT;
	return proc_create("fide-hold", 0600, NULL, &hold_file) ? 0 : -ENOMEM;
}
module_init(hold_init);
/* No module_exit: it is not unloaded, since nobody knows when the last call that was turned is through. */

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Holds packets up, or drops them, in one function of the network stack");
