//! Waiting: for the next deadline, a descriptor, or not at all.

use super::Core;
use crate::clock::now_ns;
use fide_lane::Prober;
use std::os::fd::{AsRawFd, OwnedFd};

/// Stay in the loop's busy part this long between looks at the descriptors, in the dedicated profile.
const SPIN_NS: u64 = 50_000;
/// A real-time thread that never sleeps is stopped by the kernel for 50 ms of every second, all at once, in favour of ordinary
/// threads of that processor (real-time throttling; the fair server on newer kernels). So a spinning loop lets them have their 5 %
/// in slices that hurt nobody: after a heartbeat, waiting for its descriptors, which wake it at once. It cannot at heartbeat
/// intervals of about [`REST_NS`]: those need the processor isolated or the throttling off.
const REST_NS: u64 = 80_000;
/// How often it rests.
const REST_EVERY_NS: u64 = 1_000_000;

/// Descriptors of which the kernel says at a time that they are ready.
const EVENTS_AT_ONCE: usize = 64;

impl Core {
    fn next_deadline(&self) -> u64 {
        [self.node.poll_timeout(), self.progress.poll_timeout(), self.leave_at(), self.groups.poll_timeout(), self.early_at()]
            .into_iter()
            .flatten()
            .chain([self.node.next_heartbeat_ns(), self.housekeeping_at, self.owed.at_ns])
            .chain([self.own.announce_at, self.interests.due_ns])
            .chain(self.warm_at().map(|(_, at_ns, _)| at_ns))
            .chain(self.node.probing().poll_timeout(now_ns()))
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Whether something was left over for the next loop iteration.
    fn has_more(&self) -> bool {
        let waiting = self.subscribers.has_work() || !self.ends.requests.is_empty();
        waiting || self.has_urgent() || self.node.probing().has_steered() || self.receiver.has_packet()
    }

    pub(super) fn wait(&mut self) {
        let now = now_ns();
        let rests = now < self.sent.early_ns && !self.groups.is_idle();
        if rests {
            // Before it is looked whether something has come: what comes behind that is seen at the
            // end of the rest.
            self.receiver.rest(self.sent.early_ns);
        }
        if self.is_awake(now) || self.has_more() {
            std::hint::spin_loop();
            return;
        }
        let deadline_ns = if rests { self.next_deadline().min(self.sent.early_ns) } else { self.next_deadline() };
        let mut timeout_ns = deadline_ns.saturating_sub(now);
        if self.spin {
            let rest = now.saturating_sub(self.rested_ns) >= REST_EVERY_NS && timeout_ns > 2 * REST_NS;
            if !rest && now.saturating_sub(self.looked_ns) < SPIN_NS {
                std::hint::spin_loop();
                return;
            }
            self.looked_ns = now;
            timeout_ns = if rest { REST_NS } else { 0 };
            if rest {
                self.rested_ns = now;
            }
        }
        let rest_ns = self.sessions.rest_ns(now);
        if rest_ns > 0 {
            timeout_ns = timeout_ns.min(rest_ns);
        } else if self.sessions.has_work() {
            timeout_ns = 0; // who is ready is looked at all the same
        }
        let epoll = if rest_ns > 0 { &self.epoll_but_sessions } else { &self.epoll };
        let timeout =
            libc::timespec { tv_sec: (timeout_ns / 1_000_000_000) as i64, tv_nsec: (timeout_ns % 1_000_000_000) as i64 };
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_AT_ONCE];
        // SAFETY: an open epoll descriptor, an array of the stated length, a timespec that lives across the call, no signal mask.
        let n = unsafe {
            libc::epoll_pwait2(epoll.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, &raw const timeout, std::ptr::null())
        };
        let woken = || events.iter().take(n.max(0) as usize);
        if !self.sessions.is_empty() {
            woken().for_each(|e| self.session_is_ready(e.u64 as std::os::fd::RawFd, e.events));
        }
        if woken().any(|e| e.u64 == self.ends.wake.as_raw_fd() as u64) {
            let mut count = 0u64;
            // SAFETY: an open eventfd and eight bytes to fill. Non-blocking; nothing to read is no error here.
            unsafe { libc::read(self.ends.wake.as_raw_fd(), (&raw mut count).cast(), 8) };
        }
    }

    pub(super) fn wait_for_descriptors(&mut self) -> std::io::Result<()> {
        let mut fds = self.receiver.fds(&self.lane);
        fds.extend(self.prober.iter().flat_map(Prober::fds));
        fds.push(self.ends.wake.as_raw_fd());
        for fd in fds {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
            for epoll in [&self.epoll, &self.epoll_but_sessions] {
                // SAFETY: open descriptors and an event that lives across the call.
                let r = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
                if r < 0 {
                    let e = std::io::Error::last_os_error();
                    if e.raw_os_error() != Some(libc::EEXIST) {
                        return Err(e);
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn wait_for(&self, fd: &OwnedFd, events: u32, how: libc::c_int) -> std::io::Result<()> {
        let mut event = libc::epoll_event { events, u64: fd.as_raw_fd() as u64 };
        // SAFETY: open descriptors and an event that lives across the call.
        let r = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), how, fd.as_raw_fd(), &raw mut event) };
        if r < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    }
}
