# shellcheck shell=sh disable=SC2034,SC2154 # variables pass between it and what reads it
# Shared by the clients of this image: qemu-storage-daemon shows a device of a server as a file (over FUSE), a loop
# device is attached to that file, and the file system is mounted from there. With fs-type=raw there is no file system,
# and the volume is a directory with that file. Read after client.sh.
# shellcheck source=images/lib/file-system.sh
. /usr/libexec/mooring-lib/file-system.sh

# How long a server may be silent, in seconds; 0 means forever.
io_timeout=${MOORING_OPTION_IO_TIMEOUT:-300}
case $io_timeout in
*[!0-9]* | ??????*)
    fail "io-timeout $io_timeout is not a number of seconds below 100000: write one, or 0 to wait without limit" ;;
esac

# Has the device's next mount write to a file of this node what it has to: its journal is replayed, and the device stays
# as it is. Arguments: qemu's --object for a secret, the device and its driver for qemu-img, and the message if it can't
# be reached.
#
# On the disk: a journal may take more than the memory that all volumes of the client Pod share. With extended_l2 a block
# that is written takes its own room and no more.
overlay() {
    overlay=$overlay_file
    qemu-img create -q -f qcow2 -o extended_l2=on --object "$1" -b "$2" -F "$3" "$overlay" || fail "$4"
}
overlay=

# Mounts a device. Arguments: qemu's --blockdev, the message if the device can't be reached, and further options of
# qemu.
mount_device() {
    disk=$1
    failed=$2
    shift 2

    writable=on
    shown_read_only=$read_only
    if [ -n "$overlay" ]; then
        # The file system itself keeps to reading.
        shown_read_only=
        set -- "$@" --blockdev "$disk,node-name=below,read-only=on" --blockdev \
            "driver=qcow2,node-name=disk,backing=below,file.driver=file,file.filename=$overlay"
    else
        [ -z "$read_only" ] || writable=off
        # Each of these drivers is one node, so this is where what is deleted would be kept from the server.
        set -- "$@" --blockdev \
            "$disk,node-name=disk,discard=unmap,read-only=$([ -z "$read_only" ] && echo off || echo on)"
    fi
    if [ "$fs_type" = raw ]; then
        set -- "$@" --nbd-server "addr.type=unix,addr.path=$MOORING_STATE/socket" \
            --export "type=nbd,id=shown,node-name=disk,name=disk,writable=$writable"
        # So that it can be watched.
        writable=off
    fi
    : >"$MOORING_STATE/disk"
    service daemon --pid-file "$MOORING_STATE/pid" -- \
        qemu-storage-daemon --daemonize --pidfile "$MOORING_STATE/pid" "$@" \
        --export "type=fuse,id=disk,node-name=disk,mountpoint=$MOORING_STATE/disk,writable=$writable" || fail "$failed"
    # It goes with the program, which has it open.
    [ -z "$overlay" ] || rm -f "$overlay"
    service watch-server --limit "$io_timeout" "$MOORING_STATE/disk"
    if [ "$fs_type" = raw ]; then
        service show-device ${read_only:+--read-only} "$MOORING_STATE/socket"
    else
        # Another node may write to a raw block volume meanwhile.
        loop=$(service loop ${shown_read_only:+--read-only} ${raw_block:+--direct} "$MOORING_STATE/disk")
        use_device "$loop"
    fi
}
