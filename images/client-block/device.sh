# shellcheck shell=sh disable=SC2034,SC2154 # variables pass between it and what reads it
# What the clients of this image have in common: a device of a server is shown as a file by qemu-storage-daemon (over FUSE), a loop
# device is set on that, and the file system is mounted from there. With fs-type=raw there is none, and the volume is a directory with that file.
#
# A program of a client reads this first: its "unmount" is done here whole, and for "mount" it has $source, $directory, $state, a
# directory of the volume's own, and $read_only, and ends by calling mount_device, or mount_from with a device of the kernel's, which $release
# is the command to let go of.
set -eu

fail() {
    echo "$1" >&2
    exit 1
}

usage="usage: ${0##*/} mount <source> <directory> | ${0##*/} unmount <directory>"
case ${1-} in
mount) [ $# -eq 3 ] || fail "$usage" ;;
unmount) [ $# -eq 2 ] || fail "$usage" ;;
*) fail "$usage" ;;
esac
eval "directory=\${$#}"
# One per volume and Pod: the agent's directory has a name of its own for each.
state=/run/mooring-block/${directory##*/}

# shellcheck source=images/raw-device.sh
. /usr/libexec/mooring-raw-device.sh

held() {
    case $(losetup --noheadings --output BACK-FILE "$loop" 2>/dev/null) in
    "$state/disk"*) ;;
    *) return 1 ;;
    esac
}

# Lets the loop device and the daemon go. To be repeated until it succeeds; what is not there is fine.
let_go() {
    # Ours, where a mount has failed: while it is open the device stays.
    exec 8>&-
    if [ -s "$state/loop" ]; then
        loop=$(cat "$state/loop")
        tries=0
        # Only if it is still ours: another may have it by now. While the kernel still writes out what a file system that was
        # unmounted had in memory, it stays for that long, and so must the daemon.
        while held; do
            losetup --detach "$loop" 2>/dev/null || true
            held || break
            tries=$((tries + 1))
            [ "$tries" -lt 150 ] || fail "$loop is still in use: it is let go when what was written has got to the server"
            sleep 0.1
        done
        rm -f "$state/loop"
    fi
    hide_device "$state"
    end_daemon qemu-storage-da "$state/pid"
    if mountpoint -q "$state/disk" 2>/dev/null || grep -q " $state/disk " /proc/self/mounts; then
        umount -l "$state/disk"
    fi
    rm -rf "$state"
    ${release:-:}
}

if [ "$1" = unmount ]; then
    let_go
    exit 0
fi

source=$2

# shellcheck source=images/file-system.sh
. /usr/libexec/mooring-file-system.sh
# How long a server may be silent, in seconds; 0: for ever.
io_timeout=${MOORING_OPTION_IO_TIMEOUT:-300}
case $io_timeout in
*[!0-9]* | ??????*) fail "io-timeout $io_timeout is not a number of seconds below 100000: write one, or 0 to wait for ever" ;;
esac

let_go
mkdir -p "$state"
trap 'let_go' EXIT

# Mounts a device: how qemu's --blockdev names it, what to say if it can't be had, and further options of qemu's.
mount_device() {
    disk=$1
    failed=$2
    shift 2

    writable=on
    [ -z "$read_only" ] || writable=off
    set -- "$@" --blockdev "$disk,node-name=disk,read-only=$([ -z "$read_only" ] && echo off || echo on)"
    if [ "$fs_type" = raw ]; then
        set -- "$@" --nbd-server "addr.type=unix,addr.path=$state/socket" --export "type=nbd,id=shown,node-name=disk,name=disk,writable=$writable"
        # To be watched.
        writable=off
    fi
    : >"$state/disk"
    qemu-storage-daemon --daemonize --pidfile "$state/pid" "$@" \
        --export "type=fuse,id=disk,node-name=disk,mountpoint=$state/disk,writable=$writable" || fail "$failed"
    [ "$io_timeout" -eq 0 ] || watch_server
    if [ "$fs_type" = raw ]; then
        show_device "$(cat "$state/pid")" "$state"
        trap - EXIT
        return 0
    fi

    loop=$(losetup --find)
    # The container has the devices that were there when it began.
    [ -b "$loop" ] || mknod "$loop" b 7 "${loop#/dev/loop}"
    losetup ${read_only:+--read-only} "$loop" "$state/disk"
    echo "$loop" >"$state/loop"
    # A device that is let go while it is in use goes with its last user: this shell, and then the mount. So none is left when the
    # container is killed, and with it all that is known of it here.
    exec 8<"$loop"
    losetup --detach "$loop"
    mount_from "$loop"
    exec 8>&-
}

# Ends the daemon when its server has been silent for too long, so that whoever waits gets an error: processes that wait in the kernel can't be ended, and with
# them their Pod.
watch_server() {
    setsid sh -c '
        answered=$2/answered-$1
        while [ -d "/proc/$1" ]; do
            rm -f "$answered"
            { dd "if=$2/disk" of=/dev/null bs=4096 count=1 iflag=direct; : >"$answered"; } >/dev/null 2>&1 &
            waited=0
            until [ -e "$answered" ] || [ ! -d "/proc/$1" ]; do
                if [ "$waited" -ge "$3" ]; then
                    echo "the server of $4 was silent for $3 s: who waits for it gets an error" >&2
                    kill -KILL "$1"
                    exit
                fi
                sleep 1
                waited=$((waited + 1))
            done
            sleep 15
        done
    ' watch "$(cat "$state/pid")" "$state" "$io_timeout" "$source" &
}

# Mounts the file system of a block device.
mount_from() {
    mount_file_system "$1"
    trap - EXIT
}
