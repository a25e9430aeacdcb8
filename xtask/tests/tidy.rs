//! The sources as they stand now, under every tidy check: one test each, so that one complaint does not hide another.

use xtask::tidy::CHECKS;
use xtask::tree::Tree;

macro_rules! holds {
    ($($check:ident)*) => {
        $(
            #[test]
            fn $check() {
                let (_, check) = CHECKS.iter().find(|(name, _)| *name == stringify!($check)).expect("a check of that name");
                let complaints = check(&Tree::here().unwrap());
                assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
            }
        )*

        #[test]
        fn no_check_is_forgotten() {
            assert_eq!(CHECKS.iter().map(|(name, _)| *name).collect::<Vec<_>>(), [$(stringify!($check)),*]);
        }
    };
}

holds!(arrows lints suite fences examples cancel_safety clocks unfinished shape machines code_map abilities api);
