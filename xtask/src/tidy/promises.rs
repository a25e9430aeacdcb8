//! That every store runs the suite, every example is run, and every future says what dropping it costs.

use crate::tree::{Tree, code};

/// Where the examples are.
const EXAMPLES: &str = "examples/src/bin/";
/// The crates that have backends only to test with.
const PRETEND: &[&str] = &["testkit", "sim"];

/// A backend that does not run the suite is not a backend.
pub(super) fn suite(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for name in tree.crates().filter(|name| !PRETEND.contains(name)) {
        let backend = tree.rust(&format!("crates/{name}/src/")).find_map(|(path, text)| {
            let (line, _) = code(text).into_iter().find(|(_, line)| is_backend(line))?;
            Some(format!("{path}:{line}"))
        });
        // Core's store is memory, and the suite, which is built on core, may be the one to run it.
        let (invocation, places) = match name {
            "core" => {
                ("conformance!(memory".to_owned(), vec!["crates/core/tests/".to_owned(), "crates/testkit/tests/".to_owned()])
            }
            _ => ("conformance!(".to_owned(), vec![format!("crates/{name}/tests/")]),
        };
        let runs_it = |place: &String| tree.rust(place).any(|(_, text)| without_spaces(text).contains(&invocation));
        if let Some(backend) = backend
            && !places.iter().any(runs_it)
        {
            complaints.push(format!("{backend}: a Backend, but {} has no {invocation} …)", places.join(" or ")));
        }
    }
    complaints
}

/// A fence that does not run its suite is none either: what remembers marks in a store is in a crate whose tests say `fences!`.
pub(super) fn fences(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for name in tree.crates().filter(|name| !PRETEND.contains(name)) {
        let fence = tree.rust(&format!("crates/{name}/src/")).find_map(|(path, text)| {
            let (line, _) = code(text).into_iter().find(|(_, line)| is_fence(line))?;
            Some(format!("{path}:{line}"))
        });
        let runs_it = tree.rust(&format!("crates/{name}/tests/")).any(|(_, text)| without_spaces(text).contains("fences!("));
        if let Some(fence) = fence.filter(|_| !runs_it) {
            complaints.push(format!("{fence}: a Fence, but crates/{name}/tests/ has no fences!( …)"));
        }
    }
    complaints
}

/// An example that no test reads is one that has stopped working. Each is also named on the examples' first page.
pub(super) fn examples(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    let names = tree.rust(EXAMPLES).filter_map(|(path, _)| path.strip_prefix(EXAMPLES)?.strip_suffix(".rs"));
    for name in names {
        for (page, times) in [("examples/tests/run.rs", 3), ("examples/src/lib.rs", 1)] {
            let words = tree.text(page).split(|char: char| !char.is_alphanumeric() && char != '_');
            if words.filter(|word| *word == name).count() < times {
                complaints.push(format!("{page}: the example {name} is missing, or is not run on every store"));
            }
        }
    }
    complaints
}

/// Every public async function of a library says what dropping its future costs.
pub(super) fn cancel_safety(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for name in tree.libraries() {
        for (path, text) in tree.rust(&format!("crates/{name}/src/")) {
            let lines: Vec<&str> = text.lines().collect();
            for (number, line) in code(text) {
                if gives_a_future(&lines[number - 1..]) && !documentation(&lines[..number - 1]).contains("Cancel safety") {
                    let signature = line.trim().trim_end_matches(" {");
                    complaints
                        .push(format!("{path}:{number}: no \"# Cancel safety\" in the documentation of `{signature}`"));
                }
            }
        }
    }
    complaints
}

fn is_backend(line: &str) -> bool {
    line.trim_start().starts_with("impl") && line.contains("Backend for ")
}

fn is_fence(line: &str) -> bool {
    line.trim_start().starts_with("impl") && (line.contains(" Fence for ") || line.contains(" Marks for "))
}

/// The code of a file, however it is broken into lines.
fn without_spaces(text: &str) -> String {
    code(text).iter().flat_map(|(_, line)| line.chars()).filter(|char| !char.is_whitespace()).collect()
}

/// Whether a public function that gives a future begins on the first of these lines.
fn gives_a_future(lines: &[&str]) -> bool {
    let first = lines[0].trim_start();
    if first.starts_with("pub async fn ") {
        return true;
    }
    if !first.starts_with("pub fn ") {
        return false;
    }
    let end = lines.iter().position(|line| line.contains('{') || line.ends_with(';')).unwrap_or(0);
    let signature = lines[..=end].join(" ");
    signature.rsplit_once("->").is_some_and(|(_, gives)| gives.split("where").next().unwrap_or(gives).contains("Future"))
}

/// The documentation that ends where these lines end, attributes in between left in.
fn documentation(before: &[&str]) -> String {
    let belongs = |line: &&&str| line.trim_start().starts_with("///") || line.trim_start().starts_with("#[");
    before.iter().rev().take_while(belongs).copied().collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: &str = "//! A store.\nimpl Backend for Redis {\n}\n";
    const RUN: &str = "tenure_testkit::conformance!(redis => Harness);";

    fn suite_of(files: &[(&str, &str)]) -> usize {
        let manifests = [("crates/redis/Cargo.toml", ""), ("crates/core/Cargo.toml", ""), ("crates/sim/Cargo.toml", "")];
        suite(&Tree::of(&[&manifests, files].concat())).len()
    }

    #[test]
    fn a_store_runs_the_suite() {
        let backend = ("crates/redis/src/backend.rs", STORE);
        assert_eq!(suite_of(&[backend]), 1);
        assert_eq!(suite_of(&[backend, ("crates/redis/tests/suite.rs", RUN)]), 0);
        assert_eq!(suite_of(&[backend, ("crates/redis/tests/suite.rs", "conformance! (\n    redis => Harness\n);")]), 0);
        assert_eq!(suite_of(&[backend, ("crates/redis/tests/suite.rs", "// conformance!(redis => Harness);")]), 1);
        assert_eq!(suite_of(&[backend, ("crates/mysql/tests/suite.rs", RUN)]), 1);
    }

    #[test]
    fn memory_runs_it_where_it_can() {
        let memory = ("crates/core/src/memory.rs", "impl Backend for MemoryBackend {");
        assert_eq!(suite_of(&[memory]), 1);
        assert_eq!(suite_of(&[memory, ("crates/testkit/tests/memory.rs", "conformance!(\n    memory => Harness\n);")]), 0);
        assert_eq!(suite_of(&[memory, ("crates/testkit/tests/other.rs", "conformance!(redis => Harness);")]), 1);
    }

    #[test]
    fn pretend_stores_need_not() {
        assert_eq!(suite_of(&[("crates/sim/src/faulty.rs", "impl<B: Backend> Backend for Faulty<B> {")]), 0);
        assert_eq!(suite_of(&[("crates/redis/src/wrap.rs", "impl<B: Backend> Backend for Prefix<B> {")]), 1);
    }

    #[test]
    fn a_fence_runs_its_suite() {
        let of = |files: &[(&str, &str)]| fences(&Tree::of(&[&[("crates/redis/Cargo.toml", "")], files].concat())).len();
        for text in ["impl Fence for RedisFence {", "impl Marks for Rows {"] {
            let fence = ("crates/redis/src/fence.rs", text);
            assert_eq!(of(&[fence]), 1);
            assert_eq!(of(&[fence, ("crates/redis/tests/fences.rs", "tenure_testkit::fences!(redis => Harness);")]), 0);
        }
    }

    #[test]
    fn an_example_that_is_not_run_is_found() {
        let of = |test: &str, page: &str| {
            let example = ("examples/src/bin/leader.rs", "");
            examples(&Tree::of(&[example, ("examples/tests/run.rs", test), ("examples/src/lib.rs", page)])).len()
        };
        let run = "run!(sqlite; leader); run!(memory; leader); fn leader() {}";
        assert_eq!(of(run, "- `leader`: leads"), 0);
        assert_eq!(of("run!(memory; leader); fn leader() {}", "- `leader`: leads"), 1);
        assert_eq!(of(run, "- `leaders`: lead"), 1);
    }

    fn cancel_safety_of(text: &str) -> usize {
        cancel_safety(&Tree::of(&[("crates/core/Cargo.toml", ""), ("crates/core/src/x.rs", text)])).len()
    }

    #[test]
    fn a_future_that_says_its_cancel_safety_is_good() {
        assert_eq!(cancel_safety_of("/// Waits.\n///\n/// # Cancel safety\n/// Yes.\n#[must_use]\npub async fn f() {}"), 0);
        assert_eq!(cancel_safety_of("pub(crate) async fn f() {}\nasync fn g() {}\npub fn h(f: impl Future) -> u8 {}"), 0);
        assert_eq!(cancel_safety_of("// pub async fn f() {}"), 0);
    }

    #[test]
    fn a_future_that_does_not_is_found() {
        assert_eq!(cancel_safety_of("/// Waits.\npub async fn f() {}"), 1);
        assert_eq!(cancel_safety_of("/// # Cancel safety\n/// Of another.\nfn g() {}\n\npub async fn f() {}"), 1);
        assert_eq!(cancel_safety_of("    pub fn f(\n        a: u8,\n    ) -> BoxFuture<'_, u8> {"), 1);
        assert_eq!(cancel_safety_of("pub fn f() -> impl Future<Output = u8> + Send {"), 1);
    }
}
