//! The public API as text: one line a name, sorted, so that a change to it is a diff someone reads.
//!
//! It reads the sources line by line and leans on two things: rustfmt wrote them, and the lint `unreachable_pub` makes
//! `pub` mean public. What a macro gives to several kinds stands once, under `$kind`, with the macro's invocations.

use std::fs;
use std::io;
use std::path::Path;

use crate::manifest::Manifest;
use crate::tree::{Tree, code};

/// For each library, the file that lists its API and what it should say.
pub fn listings(tree: &Tree) -> Vec<(String, String)> {
    tree.libraries()
        .map(|name| {
            let package = Manifest::parse(tree.text(&format!("crates/{name}/Cargo.toml"))).name;
            let source = format!("crates/{name}/src/");
            let mut lines: Vec<String> = tree
                .rust(&source)
                .flat_map(|(path, text)| {
                    let module = module(&path[source.len()..]);
                    items(text, module.is_empty()).into_iter().map(move |item| match module.as_str() {
                        "" => item,
                        module => format!("{module}: {item}"),
                    })
                })
                .collect();
            lines.sort();
            lines.dedup();
            (format!("api/{package}.txt"), lines.into_iter().map(|line| line + "\n").collect())
        })
        .collect()
}

/// Writes the listings.
pub fn write(tree: &Tree, root: &Path) -> io::Result<()> {
    fs::create_dir_all(root.join("api"))?;
    listings(tree).into_iter().try_for_each(|(path, text)| fs::write(root.join(path), text))
}

/// `kinds/rw.rs` as `kinds::rw`, `lib.rs` as nothing.
fn module(path: &str) -> String {
    let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
    if path == "lib" { String::new() } else { path.replace('/', "::") }
}

/// What an open brace belongs to.
#[derive(Clone, Debug)]
enum Scope {
    /// `impl X`, `pub trait X`, `pub struct X`, `pub enum X`: members are listed under this word.
    Of { owner: String, members: Members },
    /// A module or a macro: looked into.
    Open,
    /// A body: not looked into.
    Body,
}

/// Which lines inside a scope are public.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Members {
    /// Those that say so: of an `impl` or a struct.
    Marked,
    /// All: of a trait or an enum.
    All,
}

/// The public items of one file. Only a crate's root says what it re-exports and which modules are open.
fn items(text: &str, is_root: bool) -> Vec<String> {
    let mut items = Vec::new();
    let mut scopes: Vec<Scope> = Vec::new();
    let mut pending = String::new(); // an item whose end has not come yet
    for (_, line) in code(text) {
        let line = without_literals(line.trim());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if matches!(scopes.last(), Some(Scope::Body)) {
            follow(&line, Scope::Body, &mut scopes);
            continue;
        }
        pending = if pending.is_empty() { line } else { format!("{pending} {line}") };
        if is_complete(&pending, scopes.last()) {
            let item = std::mem::take(&mut pending);
            items.extend(listed(&item, scopes.last(), is_root));
            follow(&item, open(&item), &mut scopes);
        }
    }
    items
}

/// Whether an item's head has been read as far as it is listed.
fn is_complete(item: &str, scope: Option<&Scope>) -> bool {
    if item.starts_with("use ") || item.starts_with("pub use ") {
        return item.ends_with(';');
    }
    let is_member = matches!(scope, Some(Scope::Of { .. })) && !item.contains("fn ");
    item.contains('{') || item.ends_with([';', '}']) || (is_member && item.ends_with(','))
}

/// The lines that an item puts into the listing.
fn listed(item: &str, scope: Option<&Scope>, is_root: bool) -> Vec<String> {
    if let Some(uses) = item.strip_prefix("pub use ") {
        return if is_root { imports(uses) } else { Vec::new() };
    }
    if item.starts_with("pub mod ") && !is_root {
        return Vec::new();
    }
    let is_invocation =
        scope.is_none() && item.ends_with(");") && item.split_once("!(").is_some_and(|(name, _)| makes_items(name));
    let (owner, everything) = match scope {
        Some(Scope::Of { owner, members }) => (format!("{owner}: "), *members == Members::All),
        _ => (String::new(), false),
    };
    if item.starts_with('}') || !(is_invocation || item.starts_with("pub ") || everything) {
        return Vec::new();
    }
    let shown = if is_invocation { item } else { head(item) };
    let on_one_line = shown.replace("( ", "(").replace(", )", ")");
    vec![format!("{owner}{}", on_one_line.trim_end_matches([';', ',', ' ']))]
}

/// An item without its body, its value, and private fields.
fn head(item: &str) -> &str {
    let is_type = ["pub struct ", "pub enum ", "pub trait "].iter().any(|word| item.starts_with(word));
    let body = item.find('{').unwrap_or(item.len());
    let value = if item.contains("const ") && !item.contains("fn ") { item.find(" = ") } else { None };
    let fields = if is_type && !item.contains("(pub ") { item.find('(') } else { None };
    &item[..body.min(value.unwrap_or(body)).min(fields.unwrap_or(body))]
}

/// `a::{b, c};` as two lines.
fn imports(uses: &str) -> Vec<String> {
    let uses = uses.trim_end_matches(';');
    match uses.split_once('{') {
        None => vec![format!("pub use {uses}")],
        Some((from, names)) => {
            let names = names.trim_end_matches(['}', ' ']).split(',').map(str::trim).filter(|name| !name.is_empty());
            names.map(|name| format!("pub use {from}{name}")).collect()
        }
    }
}

/// The scope that an item opens.
fn open(item: &str) -> Scope {
    let all = |word| item.strip_prefix(word).map(|name: &str| (owner(name), Members::All));
    let marked = |word| item.strip_prefix(word).map(|name: &str| (owner(name), Members::Marked));
    let is_transparent = ["mod ", "pub mod ", "macro_rules!", "("].iter().any(|word| item.starts_with(word));
    match all("pub trait ").or(all("pub enum ")).or(marked("pub struct ")) {
        Some((owner, members)) => Scope::Of { owner, members },
        // What a trait's implementation has is said by the trait.
        None if item.starts_with("impl") && !item.contains(" for ") => {
            let (_, name) = item.rsplit_once("> ").filter(|_| item.starts_with("impl<")).unwrap_or(("", &item[5..]));
            Scope::Of { owner: owner(name), members: Members::Marked }
        }
        None if is_transparent => Scope::Open,
        None => Scope::Body,
    }
}

fn owner(name: &str) -> String {
    name.split(['{', ':', '(', '<', ' ']).next().unwrap_or_default().to_owned()
}

/// Keeps the stack of scopes in step with the braces; the first one belongs to the item, the rest to its body.
fn follow(code: &str, opened: Scope, scopes: &mut Vec<Scope>) {
    let mut opened = Some(opened);
    for char in code.chars() {
        match char {
            '{' => scopes.push(opened.take().unwrap_or(Scope::Body)),
            '}' => drop(scopes.pop()),
            _ => {}
        }
    }
}

/// A line without what stands in quotes: braces in there are not the code's.
fn without_literals(line: &str) -> String {
    let line = line.replace(r#"\\"#, "").replace(r#"\""#, "").replace("'{'", "").replace("'}'", "").replace("'\"'", "");
    // Every second piece between quotes is a string.
    line.split('"').step_by(2).collect()
}

/// Whether this is the name of a macro that may make public items.
fn makes_items(name: &str) -> bool {
    name != "compile_error" && !name.is_empty() && name.chars().all(|char| char.is_alphanumeric() || char == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"//! X.
mod hidden;
pub mod shown;
pub use hidden::{
    A,
    b,
};

/// Doc.
#[derive(Debug)]
pub struct Point {
    /// Across.
    pub x: u8,
    y: u8,
}

pub struct Token(u64);
pub struct Pair(pub u8, u8);

#[non_exhaustive]
pub enum Kind {
    /// One.
    One,
    Two { deep: u8 },
}

pub trait Store: Send {
    fn get<'a>(
        &'a self,
        key: &'a str,
    ) -> u8;
    fn close(&self) {
        let x = Kind::One;
    }
}

impl Store for Point {
    fn get(&self) -> u8 { 1 }
}

impl<T> Point {
    pub const ZERO: Point = Point { x: 0, y: 0 };

    pub async fn lock(&self) -> Result<Guard> {
        println!("{{ \" {", '{');
        if true {
            pub_looking();
        }
    }

    pub(crate) fn inner(&self) {}
    fn private(&self) {}
}

macro_rules! options {
    ($kind:ident) => {
        impl $kind {
            pub fn ttl(self) -> Self {
                self
            }
        }
    };
}
options!(Mutex);

pub const MOST: usize = 3;
pub fn free(a: u8) -> impl Iterator<Item = u8> {}

#[cfg(test)]
mod tests {
    pub fn not_listed() {}
}
"#;

    #[test]
    fn every_public_name_is_listed_and_nothing_else() {
        let expected = [
            "pub mod shown",
            "pub use hidden::A",
            "pub use hidden::b",
            "pub struct Point",
            "Point: pub x: u8",
            "pub struct Token",
            "pub struct Pair(pub u8, u8)",
            "pub enum Kind",
            "Kind: One",
            "Kind: Two",
            "pub trait Store: Send",
            "Store: fn get<'a>(&'a self, key: &'a str) -> u8",
            "Store: fn close(&self)",
            "Point: pub const ZERO: Point",
            "Point: pub async fn lock(&self) -> Result<Guard>",
            "$kind: pub fn ttl(self) -> Self",
            "options!(Mutex)",
            "pub const MOST: usize",
            "pub fn free(a: u8) -> impl Iterator<Item = u8>",
        ];
        assert_eq!(items(SOURCE, true), expected);
        assert!(!items(SOURCE, false).iter().any(|item| item.contains("hidden") || item.contains("pub mod")));
    }

    #[test]
    fn a_file_is_a_module() {
        assert_eq!(module("lib.rs"), "");
        assert_eq!(module("kinds/mod.rs"), "kinds");
        assert_eq!(module("kinds/rw.rs"), "kinds::rw");
    }
}
