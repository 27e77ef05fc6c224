# shellcheck shell=sh disable=SC2034,SC2154 # variables pass between it and what reads it
# The file system on a block device, for clients whose volumes are such devices. Read after client.sh. With fs-type=raw
# there is none: the volume is a directory with one file, "disk", that has the device's bytes (service show-device), and
# mount_file_system is not for it.
#
# An empty device is formatted, by the agent. ext4 gets multi-mount protection, so that a second node is refused while
# one has it mounted; xfs has nothing of the kind.
fs_type=${MOORING_FS_TYPE:-ext4}
case $fs_type in
ext4 | xfs | raw) ;;
*) fail "fs-type $fs_type is not ext4, xfs or raw" ;;
esac
options=${MOORING_MOUNT_OPTIONS-}
read_only=
case ,$options, in
*,ro,*) read_only=1 ;;
esac
if [ "$fs_type" = raw ]; then
    set -f
    IFS=,
    for option in $options; do
        case $option in
        ro | rw | suid | nosuid | dev | nodev | exec | noexec) ;;
        *) fail "mount option $option is for a file system, and with fs-type raw there is none: leave it out" ;;
        esac
    done
    unset IFS
    set +f
fi

# An error makes an ext4 read-only, whatever its superblock or the volume says: errors=panic takes the node down.
if [ "$fs_type" = ext4 ]; then
    options=$(printf %s "$options" | sed -E 's/(^|,)errors=[^,]*//g; s/^,//')
    options=${options:+$options,}errors=remount-ro
fi

# Has the Pod use a block device: with a file system, or as it is.
use_device() {
    if [ -n "$raw_block" ]; then
        service give-device "$1"
    else
        mount_file_system "$1"
    fi
}

# Mounts the file system of a block device, and first makes one if the device is empty.
mount_file_system() {
    # 2: the device is empty. Anything else that is not a file system is user data.
    found=0
    blkid --probe "$1" >/dev/null 2>&1 || found=$?
    if [ "$found" -eq 2 ] && [ -z "$read_only" ]; then
        agent make-file-system --type "$fs_type" \
            ${MOORING_OPTION_BYTES_PER_INODE:+--bytes-per-inode "$MOORING_OPTION_BYTES_PER_INODE"} "$1"
    fi
    # A copy has the UUID of what it is a copy of, and a node may have both.
    [ "$fs_type" != xfs ] || options=${options:+$options,}nouuid
    mount_with_options "$1" || {
        case $(dumpe2fs -h "$1" 2>/dev/null | grep -i '^MMP') in
        ?*)
            echo "if another node has this volume mounted, delete the Pod there;" \
                "after a node has died it takes a minute" >&2
            ;;
        esac
        fail "failed to mount the $fs_type on $source"
    }
    # 2: it was made for this device just now.
    [ "$found" -eq 2 ] || [ -n "$read_only" ] || grow_if_short "$1"
}

# Mounts a device with the options of the volume and the label, if it has one. Argument: the device.
mount_with_options() {
    if [ -z "${MOORING_SELINUX_LABEL-}" ]; then
        mount -t "$fs_type" ${options:+-o "$options"} "$1" "$directory"
    else
        # mount sees no SELinux in a container, and would leave the label out.
        "$MOORING_AGENT" mount-device --type "$fs_type" --options "$options" --label "$MOORING_SELINUX_LABEL" \
            "$1" "$directory"
    fi
}

# Has a file system that is smaller than its device have all of it: a copy may be larger than what it is a copy of.
grow_if_short() {
    case $fs_type in
    ext4)
        # Less than the largest block there is, 64 KiB, is of no use.
        has=$(dumpe2fs -h "$1" 2>/dev/null | awk '/^Block count:/ { n = $3 } /^Block size:/ { printf "%.0f", n * $3 }')
        [ "$has" -lt $(($(blockdev --getsize64 "$1") / 65536 * 65536)) ] || return 0
        resize2fs "$1" >/dev/null
        ;;
    # It changes nothing where there is no more.
    xfs) xfs_growfs -d "$directory" >/dev/null ;;
    esac || {
        umount "$directory"
        fail "the $fs_type on $source does not grow to the size of its device. A mounted ext4 grows only where the" \
            "client container has CAP_SYS_RESOURCE"
    }
}
