# shellcheck shell=sh disable=SC2034,SC2154 # variables pass between it and what reads it
# Shared by the clients of iSCSI devices. Read after client.sh if it calls fail.

# The initiator's name if the volume has none: the same after every restart, and different on each node.
own_initiator() {
    echo "iqn.2025-01.dev.mooring:$(hostname | tr 'A-Z_' 'a-z-')"
}

# Sets $user_key and $password_key, the keys of the volume's Secret that have a login: by their names here, or by those
# of Kubernetes' own iSCSI volumes. With "in", it is the login by which the target proves its identity. Fails if there
# is none.
chap() {
    for names in "chap-username${1:+-$1}:chap-password${1:+-$1}" \
        "node.session.auth.username${1:+_$1}:node.session.auth.password${1:+_$1}"; do
        user_key=${names%:*}
        password_key=${names#*:}
        [ -s "$MOORING_SECRETS/$user_key" ] || continue
        [ -s "$MOORING_SECRETS/$password_key" ] || fail "the volume's Secret has $user_key and no $password_key"
        return 0
    done
    return 1
}

# The portals that $server names, each with its port. Fails if one has no valid port. Read after client.sh.
portals() {
    # The list is split where the shell would also put names of files in place of a star.
    case $server in
    *[!][a-zA-Z0-9.,:%_-]*) fail "source=$source has no server's name or address" ;;
    esac
    for portal in $(echo "$server" | tr ',' ' '); do
        split_server "$portal"
        [ -n "$port" ] || portal=$portal:3260
        echo "$portal"
    done
}
