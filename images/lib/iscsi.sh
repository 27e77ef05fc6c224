# shellcheck shell=sh disable=SC2034,SC2154 # variables pass between it and what reads it
# What the clients of iSCSI devices have in common. Read after client.sh, where fail is called.

# The initiator's name where the volume says none: the same after every restart, and another on each node.
own_initiator() {
    echo "iqn.2025-01.dev.mooring:$(hostname | tr 'A-Z_' 'a-z-')"
}

# Sets $user_key and $password_key, which of the keys of the volume's Secret hold a login: by their names here, or by
# those that Kubernetes' own iSCSI volumes have. With "in", the login by which the target shows who it is. Fails if
# there is none.
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
