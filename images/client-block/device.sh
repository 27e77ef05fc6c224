# What the clients of this image have in common: a device of a server is shown as a file by qemu-storage-daemon (over FUSE), a loop
# device is set on that, and the file system is mounted from there.
#
# A program of a client reads this first: its "unmount" is done here whole, and for "mount" it has $source, $directory and $state,
# a directory of the volume's own, and ends by calling mount_device.
#
# A device without anything on it is formatted. ext4 gets multi-mount protection, so that a second node is refused while one
# has it mounted; xfs has nothing of the kind.
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

held() {
    case $(losetup --noheadings --output BACK-FILE "$loop" 2>/dev/null) in
    "$state/disk"*) ;;
    *) return 1 ;;
    esac
}

# Lets the loop device and the daemon go. To be repeated until it succeeds; what is not there is fine.
let_go() {
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
    if [ -s "$state/pid" ]; then
        pid=$(cat "$state/pid")
        if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = qemu-storage-da ]; then
            kill "$pid"
            tries=0
            while [ -d "/proc/$pid" ] && [ "$(cut -d' ' -f3 "/proc/$pid/stat" 2>/dev/null)" != Z ]; do
                tries=$((tries + 1))
                # A server that does not take the last writes: nothing is gained by waiting longer.
                [ "$tries" -lt 100 ] || { kill -KILL "$pid" 2>/dev/null || true; break; }
                sleep 0.1
            done
        fi
        rm -f "$state/pid"
    fi
    if mountpoint -q "$state/disk" 2>/dev/null || grep -q " $state/disk " /proc/self/mounts; then
        umount -l "$state/disk"
    fi
    rm -rf "$state"
}

if [ "$1" = unmount ]; then
    let_go
    exit 0
fi

source=$2

let_go
mkdir -p "$state"
trap 'let_go' EXIT

# Mounts a device: how qemu's --blockdev names it, what to say if it can't be had, and further options of qemu's.
mount_device() {
    disk=$1
    failed=$2
    shift 2

    fs_type=${MOORING_FS_TYPE:-ext4}
    case $fs_type in
    ext4 | xfs) ;;
    *) fail "fs-type $fs_type is not ext4 or xfs" ;;
    esac
    options=${MOORING_MOUNT_OPTIONS-}
    read_only=
    case ,$options, in
    *,ro,*) read_only=1 ;;
    esac

    : >"$state/disk"
    set -- "$@" --blockdev "$disk,node-name=disk,read-only=$([ -z "$read_only" ] && echo off || echo on)" \
        --export "type=fuse,id=disk,node-name=disk,mountpoint=$state/disk,writable=$([ -z "$read_only" ] && echo on || echo off)"
    qemu-storage-daemon --daemonize --pidfile "$state/pid" "$@" || fail "$failed"

    loop=$(losetup --find)
    # The container has the devices that were there when it began.
    [ -b "$loop" ] || mknod "$loop" b 7 "${loop#/dev/loop}"
    losetup ${read_only:+--read-only} "$loop" "$state/disk"
    echo "$loop" >"$state/loop"

    # 2: there is nothing at all. Anything else that is no file system is somebody's data.
    found=0
    blkid --probe "$loop" >/dev/null 2>&1 || found=$?
    if [ "$found" -eq 2 ] && [ -z "$read_only" ]; then
        case $fs_type in
        ext4) mkfs.ext4 -q -O mmp -E nodiscard "$loop" ;;
        xfs) mkfs.xfs -q -K "$loop" ;;
        esac
    fi
    mount -t "$fs_type" ${options:+-o "$options"} "$loop" "$directory" || {
        case $(dumpe2fs -h "$loop" 2>/dev/null | grep -i '^MMP') in
        ?*) echo "if another node has this volume mounted, delete the Pod there; after a node has died it takes a minute" >&2 ;;
        esac
        fail "failed to mount the $fs_type on $source"
    }
    trap - EXIT
}
