# Removes what a process leaves behind that was killed.
#
# Standard input is a pipe whose other end only that process holds. Each line says one thing that has to go with it. The
# end of the file, however it came about, means that the process is over. What is gone already is no error, and what goes
# wrong here has nobody to be reported to; hence no message and no `set -e`.
#
# Lines:
#   process PID START    a process, if it still is the one that started at this time (field 22 of /proc/PID/stat)
#   mark NAME=VALUE      every process that has this in its environment
#   lab NAME             a lab that is not ephemeral, with what was started through it
#   namespace NAME       a named network namespace
#   cgroup PATH          a control group with what is below it; processes in it are killed
#   directory PATH       a directory, with file systems that are mounted there
#   stale PREFIX         namespaces (/run/netns/NAME) or control groups called PREFIX, the id of their process, and perhaps
#                        "-" and more, if there is no such process any more
#
# Scripts may use it as well: in a session of its own (setsid), with an empty environment, and with a pipe that nobody else
# inherits.

trap '' HUP INT TERM QUIT PIPE
cd /

lines=
while read -r line; do
    lines="$lines$line
"
done

# Every value of this kind, the latest first.
each() {
    printf '%s' "$lines" | sed -n "s/^$1 //p" | sed '1!G;h;$!d'
}

start_time() {
    stat=$(cat "/proc/$1/stat") || return
    set -- ${stat##*) }
    [ "$1" = Z ] || echo "${20}"
}

# The process ids of what still runs.
running() {
    each process | while read -r pid start; do
        [ "$(start_time "$pid")" = "$start" ] && echo "$pid"
    done
    { each mark && each lab | sed 's/^/FIDE_LAB=/'; } | while read -r mark; do
        for file in $(grep -a -l -z -x -F -e "$mark" /proc/[0-9]*/environ); do
            file=${file#/proc/}
            echo "${file%/environ}"
        done
    done
}

# Kills what is in a control group, and removes it.
remove_cgroup() {
    [ -d "$1" ] || return
    # Frozen processes do not die.
    [ -e "$1/freezer.state" ] && echo THAWED >"$1/freezer.state"
    [ -e "$1/cgroup.freeze" ] && echo 0 >"$1/cgroup.freeze"
    for inner in "$1"/*/; do
        [ -d "$inner" ] && remove_cgroup "${inner%/}"
    done
    for turn in 1 2 3 4 5 6 7 8 9 10; do
        while read -r pid; do
            kill -KILL "$pid"
        done <"$1/cgroup.procs"
        rmdir "$1" && return
        sleep 0.1
    done
}

remove_stale() {
    for path in "$1"*; do
        [ -e "$path" ] || continue
        pid=${path#"$1"}
        pid=${pid%%-*}
        # A name may end in letters behind the number.
        pid=${pid%%[!0-9]*}
        [ -n "$pid" ] && [ ! -d "/proc/$pid" ] || continue
        case $path in
        /run/netns/*) ip netns del "${path#/run/netns/}" ;;
        *) remove_cgroup "$path" ;;
        esac
    done
}

for turn in 1 2 3 4 5 6 7 8 9 10; do
    pids=$(running)
    [ -z "$pids" ] && break
    for pid in $pids; do
        kill -KILL "$pid"
    done
    sleep 0.1
done
each cgroup | while read -r path; do
    remove_cgroup "$path"
done
each namespace | while read -r name; do
    ip netns del "$name"
done
each lab | while read -r name; do
    for path in "/run/netns/fide-$name-"[hs]*; do
        [ -e "$path" ] && ip netns del "${path#/run/netns/}"
    done
    rm -rf "/run/fide/lab/$name"
    rm -f "/run/fide/lab/$name.json"
done
each stale | while read -r prefix; do
    remove_stale "$prefix"
done
each directory | while read -r path; do
    [ -d "$path" ] || continue
    # What was mounted last is unmounted first.
    sed -n 's/^[^ ]* \([^ ]*\) .*/\1/p' /proc/self/mounts | sed '1!G;h;$!d' | while read -r mount; do
        case $mount/ in
        "$path"/*) umount -l "$mount" ;;
        esac
    done
    rm -rf --one-file-system "$path"
done
