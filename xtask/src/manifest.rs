//! As much of a `Cargo.toml` as the checks need: a line parser, so that the chores pull in no TOML library.

/// One crate's manifest.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The package's name.
    pub name: String,
    /// What it is built from, by package name: build dependencies too, dev-dependencies not.
    pub dependencies: Vec<String>,
    /// Whether it has the workspace's lints.
    pub inherits_lints: bool,
    /// Whether it forbids unsafe code itself.
    pub forbids_unsafe: bool,
}

impl Manifest {
    /// Reads a manifest.
    pub fn parse(text: &str) -> Self {
        let mut manifest = Manifest::default();
        let mut section = "";
        let mut open_brackets = 0;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if open_brackets == 0 && line.starts_with('[') {
                section = line.trim_matches(['[', ']']);
                if let Some(name) = section_of_one_dependency(section) {
                    manifest.dependencies.push(name.to_owned());
                }
                continue;
            }
            let starts_an_entry = open_brackets == 0;
            open_brackets += line.matches('[').count() as i32 - line.matches(']').count() as i32;
            if starts_an_entry && let Some((key, value)) = line.split_once('=') {
                manifest.entry(section, key.trim(), value.trim());
            }
        }
        manifest
    }

    fn entry(&mut self, section: &str, key: &str, value: &str) {
        match (section, key) {
            ("package", "name") => self.name = value.split('"').nth(1).unwrap_or_default().to_owned(),
            ("lints", "workspace") => self.inherits_lints = value == "true",
            ("lints.rust" | "workspace.lints.rust", "unsafe_code") => self.forbids_unsafe = value.contains("forbid"),
            _ if is_dependencies(section) => {
                let renamed = value.split_once("package").and_then(|(_, rest)| rest.split('"').nth(1));
                let name = key.split('.').next().unwrap_or(key);
                self.dependencies.push(renamed.unwrap_or(unquoted(name)).to_owned());
            }
            _ if section_of_one_dependency(section).is_some() && key == "package" => {
                self.dependencies.pop();
                self.dependencies.push(unquoted(value).to_owned());
            }
            _ => {}
        }
    }
}

/// `dependencies`, `build-dependencies`, `target.'cfg(unix)'.dependencies`.
fn is_dependencies(section: &str) -> bool {
    let last = section.rsplit('.').next().unwrap_or(section);
    !section.starts_with("workspace") && matches!(last, "dependencies" | "build-dependencies")
}

/// The name in `[dependencies.NAME]`.
fn section_of_one_dependency(section: &str) -> Option<&str> {
    let (table, name) = section.rsplit_once('.')?;
    is_dependencies(table).then(|| unquoted(name))
}

fn unquoted(text: &str) -> &str {
    text.trim_matches(['"', '\''])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_a_dependency_is_seen() {
        let manifest = Manifest::parse(
            r#"
            [package]
            name = "x" # why
            [dependencies]
            a = "1"
            b.workspace = true
            c = { workspace = true, features = [
                "not-a-dependency",
            ] }
            d = { package = "real-d", version = "1" }
            [target.'cfg(unix)'.dependencies]
            e = "1"
            [build-dependencies]
            f = "1"
            [dependencies.g]
            package = "real-g"
            [dev-dependencies]
            h = "1"
            [lints]
            workspace = true
            "#,
        );
        assert_eq!(manifest.dependencies, ["a", "b", "c", "real-d", "e", "f", "real-g"]);
        assert_eq!(manifest.name, "x");
        assert!(manifest.inherits_lints && !manifest.forbids_unsafe);
    }

    #[test]
    fn the_workspace_table_is_not_a_dependency() {
        let manifest =
            Manifest::parse("[workspace.dependencies]\na = \"1\"\n[workspace.lints.rust]\nunsafe_code = \"forbid\"");
        assert_eq!((manifest.dependencies.len(), manifest.forbids_unsafe), (0, true));
    }
}
