//! The list of all cases, which exists once, and each case behind a plain function pointer, so that it is compiled once.

use std::sync::Arc;

use super::Stage;
use crate::suite::boxed::Playing;

/// A case of [`fence_cases!`](crate::fence_cases).
pub type Case = for<'a> fn(&'a Arc<Stage>) -> Playing<'a>;

/// Makes every promise of a fence a test: `fences!(file => FileHarness)` gives tests called `file::lower_is_refused` and so on, and one
/// called `file::racer`, which is the way into a second process.
#[macro_export]
macro_rules! fences {
    ($fence:ident => $harness:ty) => {
        mod $fence {
            #[allow(unused_imports)]
            use super::*;

            type Harness = $harness;
            const RACER: &str = concat!(module_path!(), "::racer");

            /// Not a promise: what the suite starts in a second process. Does nothing by itself.
            #[test]
            fn racer() {
                $crate::fences::race::<Harness>();
            }

            $crate::fence_cases! { $crate::__fences }
        }
    };
}

/// Hands the list of cases to a macro: those that share a server, and those that need one of their own.
#[macro_export]
macro_rules! fence_cases {
    ($callback:path) => {
        $callback! {
            false => [
                lower_is_refused
                an_equal_token_is_accepted
                a_higher_token_is_remembered
                names_are_different
                the_lowest_and_the_highest_token
                a_number_that_is_no_token_is_refused
                a_step_that_is_too_large_changes_nothing
                a_token_from_the_future_changes_nothing
                the_first_token_has_a_rule_too
                looking_changes_nothing
                a_probe_touches_no_name
                opened_again_it_remembers
                many_tasks_race
                many_processes_race
                a_killed_client_takes_nothing_back
                cancelled_at_any_poll
            ]
            true => [
                a_killed_server_takes_nothing_back
            ]
        }
    };
}

/// The tests of [`fence_cases!`].
#[doc(hidden)]
#[macro_export]
macro_rules! __fences {
    ($($alone:literal => [ $($case:ident)+ ])+) => {
        $($(
            #[test]
            fn $case() {
                $crate::fences::run::<Harness>(RACER, $alone, $crate::fences::boxed::$case);
            }
        )+)+
    };
}

macro_rules! functions {
    ($($alone:literal => [ $($case:ident)+ ])+) => {
        $($(
            pub fn $case(stage: &std::sync::Arc<super::Stage>) -> $crate::suite::boxed::Playing<'_> {
                Box::pin(super::super::cases::$case(stage))
            }
        )+)+
    };
}

/// Every case as a function pointer.
#[allow(missing_docs, reason = "the case itself says it")]
pub mod boxed {
    crate::fence_cases! { functions }
}
