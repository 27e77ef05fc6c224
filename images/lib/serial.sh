# shellcheck shell=sh
# How a disk of the node's kernel is found by its serial: by what the disk itself says, never by its name or its place.

# The serial of a disk's folder in /sys; nothing if it says none.
serial_of() {
    if [ -e "$1/serial" ]; then
        cat "$1/serial"
    elif [ -e "$1/device/vpd_pg80" ]; then
        # SCSI: page 0x80 of the vital product data, with four bytes before the serial.
        tail -c +5 "$1/device/vpd_pg80" | tr -d '\000'
    elif [ -e "$1/device/serial" ]; then
        cat "$1/device/serial" # NVMe
    fi 2>/dev/null | tr -d ' \n'
}

# The folders of all disks with a serial, below a folder such as /sys/block. Some kinds of disks have room for the first
# 20 bytes of a serial (virtio-blk, ATA).
disks_with_serial() {
    short=$(printf %.20s "$2")
    for disk in "$1"/*; do
        says=$(serial_of "$disk")
        case $says in
        '') ;;
        "$2" | "$short") echo "$disk" ;;
        esac
    done
}
