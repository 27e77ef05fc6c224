//! Keeps the modules of controller, commands and mounter in order: each imports only from those below it in the table
//! of its crate's `lib.rs`, and no two files import each other, by whatever way round.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use mooring_testbed::layout::repository;

/// Where a module is in its crate: `["cache", "store"]`. The crate's root is empty.
type Module = Vec<String>;

/// What each module imports from its crate.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// The text of each module, without those of tests and without comments.
fn modules_in(folder: &Path, at: &Module, found: &mut BTreeMap<Module, String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let module: Module = match (at.is_empty(), name.as_str()) {
            (true, "lib") => Module::new(),
            (_, "tests") | (true, "main") => continue,
            _ => at.iter().cloned().chain([name]).collect(),
        };
        if path.is_dir() {
            modules_in(&path, &module, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            // Tests are the last item of a file.
            let product = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            let product = product
                .split("#[cfg(test)]\npub(crate) mod tests")
                .next()
                .unwrap_or_default();
            let code = product.lines().map(|line| line.split("//").next().unwrap_or_default());
            found.insert(module, code.collect::<Vec<_>>().join("\n"));
        }
    }
}

/// The paths of a `use`, or what stands between its braces, one for each name.
fn paths_of(tree: &str) -> Vec<String> {
    let Some((before, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree);
        return vec![path.trim().to_owned()];
    };
    let inner = rest.trim_end().strip_suffix('}').unwrap_or(rest);
    let (mut depth, mut parts) = (0_usize, vec![String::new()]);
    for letter in inner.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().unwrap().push(letter);
    }
    let parts = parts.iter().filter(|part| !part.trim().is_empty());
    parts
        .flat_map(|part| paths_of(&format!("{}{}", before.trim_start(), part.trim())))
        .collect()
}

/// The paths of one module that begin in its crate, whether imported or written out where they are used.
fn paths_in(code: &str) -> Vec<String> {
    let words = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':');
    // At the beginning of a line: elsewhere it may be a word of a message.
    let uses = [
        "\nuse ",
        "\n    use ",
        "\npub use ",
        "\npub(crate) use ",
        "\npub(super) use ",
    ]
    .into_iter()
    .flat_map(|begin| code.split(begin).skip(1).filter_map(|rest| rest.split_once(';')));
    let imported = uses.flat_map(|(tree, _)| paths_of(tree));
    let written = code.split(words).filter(|word| word.contains("::")).map(str::to_owned);
    imported.chain(written).collect()
}

fn resolved(path: &str, at: &Module, there: &BTreeMap<Module, String>) -> Option<Module> {
    let mut base = at.clone();
    let mut parts = path.split("::").map(str::trim).peekable();
    match *parts.peek()? {
        "crate" => {
            base.clear();
            parts.next();
        }
        "self" => drop(parts.next()),
        "super" => {
            while parts.next_if_eq(&"super").is_some() {
                base.pop();
            }
        }
        first => {
            let child: Module = base.iter().cloned().chain([first.to_owned()]).collect();
            there.get(&child)?;
        }
    }
    let mut whole: Module = base.into_iter().chain(parts.map(str::to_owned)).collect();
    while !there.contains_key(&whole) {
        whole.pop()?;
    }
    Some(whole)
}

fn imports_of(crate_source: &Path) -> Imports {
    let mut there = BTreeMap::new();
    modules_in(crate_source, &Module::new(), &mut there);
    assert!(there.len() > 20, "{crate_source:?}");
    let imports = there
        .iter()
        .filter(|(module, _)| !module.is_empty())
        .map(|(module, code)| {
            let found = paths_in(code)
                .into_iter()
                .filter_map(|path| resolved(&path, module, &there));
            (
                module.clone(),
                found.filter(|to| to != module && !to.is_empty()).collect(),
            )
        });
    imports.collect()
}

/// The modules of the table in the documentation of a crate, from the top.
fn table(lib: &str) -> Vec<String> {
    let rows = lib
        .lines()
        .filter_map(|line| line.strip_prefix("//! | [`")?.split_once("`]"));
    rows.map(|(module, _)| module.to_owned()).collect()
}

/// What goes against the order of the table.
fn against(order: &[String], imports: &Imports) -> Vec<String> {
    let place = |module: &Module| order.iter().position(|room| *room == module[0]);
    let mut wrong = Vec::new();
    for (module, to) in imports
        .iter()
        .flat_map(|(from, all)| all.iter().map(move |to| (from, to)))
    {
        let fits = match (place(module), place(to)) {
            (Some(from), Some(to)) => from <= to,
            _ => false,
        };
        if !fits {
            wrong.push(format!("{} imports {}", module.join("::"), to.join("::")));
        }
    }
    wrong
}

/// Modules that import each other, if only by way of others. A module and those within it are one: a parent shows what
/// its children define, and they use what all of them share.
fn circle(imports: &Imports) -> Option<Vec<String>> {
    let related = |a: &Module, b: &Module| a.starts_with(b) || b.starts_with(a);
    let mut left: BTreeMap<_, BTreeSet<_>> = imports
        .iter()
        .map(|(from, all)| (from, all.iter().filter(|to| !related(from, to)).collect()))
        .collect();
    // What imports nothing that is left, or is imported by nothing that is left, is in no circle.
    loop {
        let imported: BTreeSet<_> = left.values().flatten().copied().collect();
        let is_done = |(module, to): (&&Module, &BTreeSet<&Module>)| to.is_empty() || !imported.contains(module);
        let done: Vec<_> = left
            .iter()
            .filter(|entry| is_done(*entry))
            .map(|(module, _)| *module)
            .collect();
        if done.is_empty() {
            break;
        }
        for module in done {
            left.remove(module);
            for to in left.values_mut() {
                to.remove(module);
            }
        }
    }
    let names = |(from, to): (&&Module, &BTreeSet<&Module>)| {
        let to: Vec<_> = to.iter().map(|module| module.join("::")).collect();
        format!("{} imports {}", from.join("::"), to.join(", "))
    };
    (!left.is_empty()).then(|| left.iter().map(names).collect())
}

#[test]
fn each_module_of_controller_commands_and_mounter_imports_only_from_those_below_it() {
    for part in ["provisioner", "provisioner/cli", "mounter"] {
        let source = repository().join(part).join("src");
        let order = table(&std::fs::read_to_string(source.join("lib.rs")).unwrap());
        let imports = imports_of(&source);
        let rooms: BTreeSet<_> = imports.keys().map(|module| &module[0]).collect();
        assert_eq!(
            order.iter().collect::<BTreeSet<_>>(),
            rooms,
            "the table of {part}/src/lib.rs"
        );
        assert_eq!(against(&order, &imports), Vec::<String>::new(), "{part}");
        assert_eq!(circle(&imports), None, "{part}");
    }
}

#[test]
fn an_import_against_the_order_is_found_and_so_is_a_circle() {
    let module = |path: &str| path.split("::").map(str::to_owned).collect::<Module>();
    let imports = |all: &[(&str, &str)]| -> Imports {
        let mut found = Imports::new();
        for (from, to) in all {
            found.entry(module(from)).or_default().insert(module(to));
            found.entry(module(to)).or_default();
        }
        found
    };
    let order = ["top", "base"].map(str::to_owned);
    let good = imports(&[("top::a", "base"), ("base", "base::x"), ("base::x", "base")]);
    assert_eq!(against(&order, &good), Vec::<String>::new());
    assert_eq!(circle(&good), None);
    assert_eq!(
        against(&order, &imports(&[("base::x", "top::a")])),
        ["base::x imports top::a"]
    );
    assert!(
        circle(&imports(&[
            ("top::a", "top::b"),
            ("top::b", "top::c"),
            ("top::c", "top::a")
        ]))
        .is_some()
    );
    let code = "\nuse crate::base::{self, x::{Y, Z}};\npub use super::top::a as b;\nlet a = x::Y;";
    let there = ["base", "base::x", "top", "top::a"]
        .map(|path| (module(path), String::new()))
        .into();
    let found = paths_in(code)
        .into_iter()
        .filter_map(|path| resolved(&path, &module("base"), &there));
    let found: BTreeSet<_> = found.map(|module| module.join("::")).collect();
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["base", "base::x", "top::a"]);
}
