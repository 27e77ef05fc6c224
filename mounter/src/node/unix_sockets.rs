//! Which unix sockets a network has, by the kernel's table: see `proc_net_unix(5)`.

/// The inodes of the sockets of this name in a table. An abstract name begins with `@`.
pub fn named(table: &str, name: &str) -> Vec<u64> {
    let socket = |line: &str| {
        let mut fields = line.split_whitespace();
        let inode = fields.nth(6)?.parse().ok()?;
        let listed = fields.next()?;
        // What is left of an abstract name's room is shown, too.
        (listed == name || listed.trim_end_matches('@') == name).then_some(inode)
    };
    table.lines().filter_map(socket).collect()
}

#[cfg(test)]
mod tests {
    use super::named;

    const TABLE: &str = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01  4711 @NAME
0000000000000000: 00000002 00000000 00010000 0001 01  4712 @NAME_2
0000000000000000: 00000002 00000000 00010000 0001 01  4713 /run/NAME
0000000000000000: 00000003 00000000 00000000 0001 03  4714
";

    #[test]
    fn a_socket_is_known_by_its_whole_name() {
        assert_eq!(named(TABLE, "@NAME"), [4711]);
        assert_eq!(named(&TABLE.replace("NAME\n", "NAME@@@@@@\n"), "@NAME"), [4711]);
        assert_eq!(named(TABLE, "/run/NAME"), [4713]);
        assert_eq!(named("", "@NAME"), [0u64; 0]);
    }
}
