# shellcheck shell=sh disable=SC2034,SC2154 # variables pass between it and what reads it
# Read by clients whose volumes are block devices: with fs-type=raw a volume is a directory with one file, "disk", that has the device's bytes. They
# have `fail`, $directory and $read_only before it, and a daemon that speaks NBD. Here is also how such a daemon is ended.

# Shows the device that process $1 exports as "disk" on the socket in folder $2, until that process ends.
show_device() {
    setsid sh -c '
        # Without the daemon it would show nothing but errors: when it has ended as well, the volume is mounted anew.
        { while [ -d "/proc/$4" ] && [ -d "/proc/$$" ]; do sleep 1; done; kill $$ 2>/dev/null; } &
        # In the place of this shell, so that the agent is told of its end.
        exec nbdfuse ${2:+--readonly} --pidfile "$1/shows" -o allow_other "$3/disk" "nbd+unix:///disk?socket=$1/socket"
    ' show "$2" "$read_only" "$directory" "$1" >"$2/log" 2>&1 9>&- &
    tries=0
    until [ -e "$directory/disk" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 100 ] || fail "the device is not shown as a file: $(tail -n 1 "$2/log")"
        sleep 0.1
    done
}

# Ends what shows the device with folder $1. Its directory was unmounted, so it is about to end, unless it never came to that.
hide_device() {
    [ -s "$1/shows" ] || return 0
    pid=$(cat "$1/shows")
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != nbdfuse ] || kill "$pid" 2>/dev/null || true
    rm -f "$1/shows"
}

# Ends the daemon of this name (15 letters of it, as the kernel has it) whose process is in file $2.
end_daemon() {
    [ -s "$2" ] || return 0
    pid=$(cat "$2")
    if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$1" ]; then
        kill "$pid" 2>/dev/null || true
        tries=0
        while [ -d "/proc/$pid" ] && [ "$(cut -d' ' -f3 "/proc/$pid/stat" 2>/dev/null)" != Z ]; do
            tries=$((tries + 1))
            # A server that does not take the last writes: nothing is gained by waiting longer.
            [ "$tries" -lt 100 ] || { kill -KILL "$pid" 2>/dev/null || true; return 0; }
            sleep 0.1
        done
    fi
    rm -f "$2"
}
