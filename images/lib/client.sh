# shellcheck shell=sh disable=SC2034 # variables pass between it and what reads it
# Each client's program reads this first. Mooring's agent runs the program as "mount <source> <directory>" or "unmount
# <directory>". For a raw block volume it runs it as "device <source> <directory>": then $raw_block is set, and the
# program gives the device itself. Only clients whose record has service give-device are run so. A program that fails
# says why and what to do, and exits with 75, as a provisioning script that may be tried again does.
#
# The services that a program asks the agent for (service, below) end with the volume, and $MOORING_STATE is removed
# with it. Most programs have nothing else to undo, so their "unmount" ends here. A program that has sets $undoes before
# it reads this.
set -eu
# Only root may read what they write: it contains keys.
umask 077

fail() {
    echo "$@" >&2
    exit 75
}

# Runs a command of the agent, which says itself why it fails.
agent() {
    ended=0
    "$MOORING_AGENT" "$@" || ended=$?
    case $ended in
    0) ;;
    2) fail "the agent does not know $1: it is of another release than this image, so update both" ;;
    *) exit 75 ;;
    esac
}

# Asks the agent for a service for the volume: see docs/vendors.md.
service() {
    "$MOORING_AGENT" service "$@"
}

# Sets $host to the name or address of a server, without brackets, and $port to its port or to nothing. In a
# source that Mooring hands over, an IPv6 address always has brackets.
split_server() {
    host=$1
    port=
    case $1 in
    *\]) ;;
    *:*)
        host=${1%:*}
        port=${1##*:}
        ;;
    esac
    host=${host#\[}
    host=${host%\]}
    case $port in
    *[!0-9]*) fail "source=$source has a port that is not a number" ;;
    esac
}

# Options for libfuse's programs, or nothing: the source of the mount, by which the volume is known wherever it is
# mounted, and the label that the mount is to give to all files.
fuse_options=${MOORING_VOLUME_ID:+fsname=$MOORING_VOLUME_ID}
if [ -n "${MOORING_SELINUX_LABEL-}" ]; then
    label=$(printf %s "$MOORING_SELINUX_LABEL" | sed 's/,/\\,/g')
    fuse_options="${fuse_options:+$fuse_options,}context=\"$label\""
fi

case ${1-}:$# in
mount:3 | device:3)
    raw_block=
    [ "$1" = mount ] || raw_block=1
    source=$2
    directory=$3
    # Some become a line of a file. The mounter refuses such a volume as well.
    case $source in
    *[[:cntrl:]]*) fail "source has a control character, which is not allowed: correct it" ;;
    esac
    ;;
unmount:2)
    directory=$2
    [ -n "${undoes-}" ] || exit 0
    ;;
*) fail "usage: ${0##*/} mount|device <source> <directory> | ${0##*/} unmount <directory>" ;;
esac
