# Takes an ephemeral lab down when the process that made it is gone.
#
# Standard input is a pipe whose other end only that process holds: it says "done" when it has taken the lab down
# itself, and the end of file, however it came about, means that it will not. What goes wrong here is left to the
# next reap of stale labs; hence no message and no `set -e`.
#
# Environment: CREATOR and CREATOR_START (its process id and start time), LAB_ID, LAB_RECORD (its JSON file),
# LAB_DIRECTORY, FREEZERS (roots of cgroup freezers).
# Arguments: the lab's network namespaces.

trap '' HUP INT TERM QUIT PIPE
cd /
read -r _ && exit 0
grep -q "\"id\": \"$LAB_ID\"" "$LAB_RECORD" || exit 0

start_time() {
    stat=$(cat "/proc/$1/stat") || return
    set -- ${stat##*) }
    [ "$1" = Z ] || echo "${20}"
}

# A dying process closes its files a moment before the tools that it runs are told to die with it.
for turn in 1 2 3 4 5 6 7 8 9 10; do
    [ "$(start_time "$CREATOR")" = "$CREATOR_START" ] || break
    sleep 0.05
done

# Frozen processes do not die.
for freezer in $FREEZERS; do
    for cage in "$freezer/fide-lab-$LAB_ID-"*; do
        [ -d "$cage" ] || continue
        [ -e "$cage/freezer.state" ] && echo THAWED >"$cage/freezer.state"
        [ -e "$cage/cgroup.freeze" ] && echo 0 >"$cage/cgroup.freeze"
    done
done

# A process and its descendants.
family() {
    echo "$1"
    for child in $(cat "/proc/$1/task/"*/children); do
        family "$child"
    done
}

# The process ids of what was started through the lab and still runs: what wrote itself down, what has the mark, and the
# descendants of both, which may have cleared their environment. Those that were found before are asked for as well: they may
# have lost their parents.
known=
started() {
    {
        while read -r pid start _; do
            [ "$(start_time "$pid")" = "$start" ] && family "$pid"
        done <"$LAB_DIRECTORY/processes"
        for file in $(grep -a -l "FIDE_LAB_ID=$LAB_ID" /proc/[0-9]*/environ); do
            file=${file#/proc/}
            family "${file%/environ}"
        done
        for process in $known; do
            start=$(start_time "${process%:*}")
            [ -n "$start" ] && [ "$start" = "${process#*:}" ] && echo "${process%:*}"
        done
    } | sort -u
}

end_all() {
    for pid in $(started); do
        known="$known $pid:$(start_time "$pid")"
        kill "-$1" "$pid"
        kill -CONT "$pid"
    done
}

# Up to half a second to leave, then up to five to die.
end_all TERM
for turn in 1 2 3 4 5; do
    [ -z "$(started)" ] && break
    sleep 0.1
done
for turn in 1 2 3 4 5 6 7 8 9 10; do
    [ -z "$(started)" ] && break
    end_all KILL
    sleep 0.5
done

for namespace in "$@"; do
    echo "netns del $namespace"
done | ip -force -batch -

for freezer in $FREEZERS; do
    rmdir "$freezer/fide-lab-$LAB_ID-"*
done
rm -rf "$LAB_DIRECTORY"
rm -f "$LAB_RECORD"
