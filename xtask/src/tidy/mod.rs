//! What the sources must look like where no compiler checks it. Each check is a pure function from the tree to what is
//! wrong with it, and has tests beside it that show it failing.

mod documents;
mod manifests;
mod promises;
mod sources;

use crate::tree::Tree;

/// From the repository to one line per thing to mend: where, what, and how.
pub type Check = fn(&Tree) -> Vec<String>;

/// Every check, by name.
pub const CHECKS: &[(&str, Check)] = &[
    ("arrows", manifests::arrows),
    ("lints", manifests::lints),
    ("suite", promises::suite),
    ("fences", promises::fences),
    ("examples", promises::examples),
    ("cancel_safety", promises::cancel_safety),
    ("clocks", sources::clocks),
    ("unfinished", sources::unfinished),
    ("shape", sources::shape),
    ("machines", sources::machines),
    ("code_map", documents::code_map),
    ("abilities", documents::abilities),
    ("api", documents::api),
];
