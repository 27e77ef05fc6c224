# shellcheck shell=sh
# For clients whose volumes are block devices of the node's kernel. Read after client.sh. A device is named by its folder
# in /sys, such as /sys/block/sda.

# A node for a device of the kernel's: this container's /dev has the devices from its start.
node_of() {
    number=$(cat "$1/dev")
    mkdir -p /run/mooring-devices
    node=/run/mooring-devices/${1##*/}
    rm -f "$node"
    mknod "$node" b "${number%:*}" "${number#*:}"
    echo "$node"
}

# Notes that the volume has a device, unless another volume has it. With --in-use after it, a volume has to have it
# already. The agent decides that, for all clients of the node: whoever names a device does not get it for that alone.
claim_device() {
    agent claim-device --record "/run/mooring/mounts/$MOORING_VOLUME.json" \
        --boot-id /proc/sys/kernel/random/boot_id ${2:+"$2"} "disk ${1##*/}"
}

# Whether a device is in use: mounted in any namespace, or a part of another device, or with a partition of which this
# is so. Then the kernel refuses to open it exclusively (O_EXCL). A device that is broken can't be opened either, and is
# not in use: nothing more can be written to it.
in_use() {
    ! perl -e 'use Errno "EBUSY"; use Fcntl;
        sysopen(my $device, $ARGV[0], O_RDONLY | O_EXCL) or exit($! == EBUSY ? 1 : 0)' "$(node_of "$1")" 2>/dev/null
}

# Whether any Pod has a device for writing, with a file system or as it is. The node of a Pod that is only to read it is
# mounted read-only.
is_mounted_for_writing() {
    awk -v name="/${1##*/}" -v number="$(cat "$1/dev")" '
        ($4 == name && $5 ~ "/volumeDevices/publish/" || $3 == number) && $6 !~ /^(.*,)?ro(,.*)?$/ { written = 1 }
        END { exit !written }' /proc/self/mountinfo
}
