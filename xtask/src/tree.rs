//! The repository as a map from path to text, so that every check is a pure function and can be shown a bad tree.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// All text files, by path relative to the root.
#[derive(Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// The root of this repository.
    pub fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives in the workspace").to_owned()
    }

    /// This repository.
    pub fn here() -> io::Result<Self> {
        Self::read(&Self::root())
    }

    /// Reads a directory. Build directories and hidden ones stay out; files that are not text do too.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Tree::default();
        tree.add(root, "")?;
        Ok(tree)
    }

    /// A tree for a test, from paths and texts.
    pub fn of(files: &[(&str, &str)]) -> Self {
        Tree { files: files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect() }
    }

    /// The text of one file; empty if there is none.
    pub fn text(&self, path: &str) -> &str {
        self.files.get(path).map_or("", String::as_str)
    }

    /// Every file, in order.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The Rust files below a directory; `""` for all of them.
    pub fn rust(&self, below: &str) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(move |(path, _)| path.starts_with(below) && path.ends_with(".rs"))
    }

    /// The folders in `crates/` that hold a crate: `core`, `sqlite`.
    pub fn crates(&self) -> impl Iterator<Item = &str> {
        self.files().filter_map(|(path, _)| path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml"))
    }

    /// Those of them that programs outside this repository build on.
    pub fn libraries(&self) -> impl Iterator<Item = &str> {
        self.crates().filter(|name| !["cli", "sim", "testkit"].contains(name))
    }

    fn add(&mut self, directory: &Path, prefix: &str) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let (path, relative) = (entry.path(), format!("{prefix}{name}"));
            if entry.file_type()?.is_dir() {
                // Cargo marks its target directories, whatever they are called.
                if !name.starts_with('.') && !path.join("CACHEDIR.TAG").exists() {
                    self.add(&path, &format!("{relative}/"))?;
                }
            } else if let Ok(text) = fs::read_to_string(&path) {
                self.files.insert(relative, text);
            }
        }
        Ok(())
    }
}

/// The lines of a Rust file that are compiled into the product, with their numbers from 1: comments and `#[cfg(test)]`
/// modules are left out.
pub fn code(text: &str) -> Vec<(usize, &str)> {
    let mut lines = Vec::new();
    let mut all = text.lines().enumerate().peekable();
    while let Some((index, line)) = all.next() {
        let next_opens_module = all.peek().is_some_and(|(_, next)| next.starts_with("mod ") && next.ends_with('{'));
        if line == "#[cfg(test)]" && next_opens_module {
            while all.next().is_some_and(|(_, line)| line != "}") {}
        } else if !line.trim_start().starts_with("//") {
            lines.push((index + 1, line.split_once(" // ").map_or(line, |(code, _)| code)));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_what_is_compiled() {
        let text = "//! Doc.\nuse a; // why\n\n#[cfg(test)]\nmod tests {\n    fn x() {}\n}\nfn y() { \"memory://\" }\n";
        assert_eq!(code(text), [(2, "use a;"), (3, ""), (8, "fn y() { \"memory://\" }")]);
    }

    #[test]
    fn a_directory_is_read_without_what_cargo_made() {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [("a/b.rs", "b"), ("built/CACHEDIR.TAG", ""), ("built/c.rs", "c"), (".git/d.rs", "d")] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::write(dir.path().join("picture"), [0xFF, 0xFE]).unwrap();
        let tree = Tree::read(dir.path()).unwrap();
        assert_eq!(tree.files().collect::<Vec<_>>(), [("a/b.rs", "b")]);
    }
}
