//! The list of all cases, which exists once: a case that is added here is added to every store.

/// Makes every promise a test for one store: `conformance!(sqlite => SqliteHarness)` gives tests called
/// `sqlite::cancel::while_queued` and so on, and one called `sqlite::taker`, which is the way into a second process.
#[macro_export]
macro_rules! conformance {
    ($store:ident => $harness:ty) => {
        mod $store {
            #[allow(unused_imports)]
            use super::*;

            type Harness = $harness;
            const TAKER: &str = concat!(module_path!(), "::taker");

            /// Not a promise: what the suite starts in a second process. Does nothing by itself.
            #[test]
            fn taker() {
                $crate::taker::serve::<Harness>();
            }

            $crate::cases! { $crate::__promises }
            $crate::mutex_cases! { $crate::__as_mutex }
        }
    };
}

/// Hands the list of promises and their cases to a macro. In braces: what a store must offer for them.
#[macro_export]
macro_rules! cases {
    ($callback:path) => {
        $callback! {
            cancel { Nothing } => [
                while_queued
                try_lock
                try_lock_for
                multi
                reenter
                release
                at_the_instant_of_the_grant
                at_the_instant_of_the_grant_with_a_minimum_hold
                a_task_that_holds
                lost_asked_and_watch
            ]
            process { Processes } => [
                a_killed_holder_is_replaced
                a_killed_waiter_is_skipped
                ten_of_fifty_waiters_are_killed
                a_stopped_holder_is_lost_and_fenced
                many_count_in_a_file
                a_stress_is_sound
                half_of_the_permits_come_back
                an_exit_without_release_costs_no_more_than_the_ttl
            ]
        }
    };
}

/// Hands the cases that every kind must pass as a mutex to a macro, once for each kind.
#[macro_export]
macro_rules! mutex_cases {
    ($callback:path) => {
        mod mutex {
            $crate::mutex_cases! { $callback, plain => Mutex }
            $crate::mutex_cases! { $callback, fair => FairMutex }
            $crate::mutex_cases! { $callback, reentrant => ReentrantMutex }
            $crate::mutex_cases! { $callback, rw_lock => RwLock }
            $crate::mutex_cases! { $callback, semaphore => Semaphore }
            $crate::mutex_cases! { $callback, multi => Multi }
            $crate::mutex_cases! { $callback, election => Election }
        }
    };
    ($callback:path, $as:ident => $shape:ident) => {
        $callback! {
            $as => $shape [
                excludes_another_client
                excludes_another_task_of_its_own_client
                a_waiter_is_let_in_by_the_release
                a_waiter_is_let_in_by_the_drop
                a_wait_that_is_too_short_gives_up
                a_wait_that_is_long_enough_gets_in
                tokens_rise
                many_tasks_take_turns
                a_cancelled_waiter_leaves_the_line
                cancelled_at_any_poll_it_leaves_nothing
                a_hold_that_is_not_kept_ends
                a_hold_that_is_kept_outlives_its_ttl
                spinning_gets_in
                leaves_nothing
                a_stress_is_sound
            ]
        }
    };
}

/// The tests of [`cases!`].
#[doc(hidden)]
#[macro_export]
macro_rules! __promises {
    ($($promise:ident { $($need:tt)+ } => [ $($case:ident)+ ])+) => {
        $(
            mod $promise {
                use super::{Harness, TAKER};
                const NEED: $crate::Need = $crate::need!($($need)+);
                $(
                    #[test]
                    fn $case() {
                        $crate::run::<Harness>(TAKER, NEED, $crate::suite::$promise::$case::<Harness>);
                    }
                )+
            }
        )+
    };
}

/// The tests of [`mutex_cases!`].
#[doc(hidden)]
#[macro_export]
macro_rules! __as_mutex {
    ($as:ident => $shape:ident [ $($case:ident)+ ]) => {
        mod $as {
            use super::super::{Harness, TAKER};
            $(
                #[test]
                fn $case() {
                    $crate::run_as::<Harness>(TAKER, $crate::Shape::$shape, $crate::suite::mutex::$case::<Harness>);
                }
            )+
        }
    };
}

/// A need in the words of the list.
#[doc(hidden)]
#[macro_export]
macro_rules! need {
    (Nothing) => {
        $crate::Need::Nothing
    };
    (Cells) => {
        $crate::Need::Cells
    };
    (Processes) => {
        $crate::Need::Processes
    };
    (kind $kind:ident) => {
        $crate::Need::Kind($crate::Kind::$kind)
    };
}
