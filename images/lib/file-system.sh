# shellcheck shell=sh disable=SC2034,SC2154 # variables pass between it and what reads it
# The file system on a block device, for clients whose volumes are such devices. Read after client.sh. With fs-type=raw
# there is none: the volume is a directory with one file, "disk", that has the device's bytes (service show-device), and
# mount_file_system is not for it.
#
# A blank device is formatted, by the agent. ext4 gets multi-mount protection, so that a second node is refused while
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

# Mounts the file system of a block device, and first makes one if the device is blank.
mount_file_system() {
    # The agent decides: whatever else is on it is user data. It does not know --if-blank where it would not look.
    [ -n "$read_only" ] || agent make-file-system --if-blank --type "$fs_type" \
        ${MOORING_OPTION_BYTES_PER_INODE:+--bytes-per-inode "$MOORING_OPTION_BYTES_PER_INODE"} "$1"
    # A copy may be larger than what it is a copy of. It grows before it is mounted where it can't grow afterwards.
    [ -n "$read_only" ] || (agent grow-file-system "$1") || {
        name_other_node "$1"
        exit 75
    }
    # A copy has the UUID of what it is a copy of, and a node may have both.
    [ "$fs_type" != xfs ] || options=${options:+$options,}nouuid
    mount_with_options "$1" || {
        name_other_node "$1"
        fail "failed to mount the $fs_type on $source"
    }
    # The kubelet would take a volume that is mounted for one that is ready.
    [ -n "$read_only" ] || (agent grow-file-system --mounted "$directory" "$1") || {
        umount "$directory"
        exit 75
    }
}

# Says what to do if multi-mount protection is why a device is refused.
name_other_node() {
    case $(dumpe2fs -h "$1" 2>/dev/null | grep -i '^MMP') in
    ?*)
        echo "if another node has this volume mounted, delete the Pod there;" \
            "after a node has died it takes a minute" >&2
        ;;
    esac
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
