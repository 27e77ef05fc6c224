# shellcheck shell=sh disable=SC2034,SC2154 # variables pass between it and what reads it
# Read by clients that need a driver of the node's kernel.

# Makes the kernel load a module. A request for a network device of that name makes it call the node's own modprobe,
# with the node's own modules. The caller has to check whether that worked.
load_module() {
    perl -e 'my $name = pack("a16 x24", shift); socket(my $socket, 2, 2, 0); ioctl($socket, 0x8933, $name)' "$1" \
        2>/dev/null || true
}
