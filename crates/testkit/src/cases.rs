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
                $crate::serve::<Harness>();
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
            fair { kind FairMutex } => [
                first_come_first_served
                nobody_barges_in
                who_gives_up_is_skipped
                who_waits_too_long_is_skipped
                a_lost_holder_is_followed_by_the_first_in_line
            ]
            rw { kind RwLock } => [
                readers_share
                a_writer_excludes_everybody
                readers_exclude_a_writer
                a_reader_queues_behind_a_waiting_writer
                a_writer_that_gives_up_lets_readers_in
                a_writer_lets_all_readers_in
                readers_do_not_starve_a_writer
                writers_do_not_starve_a_reader
                a_lost_reader_lets_the_writer_in
                cancelled_read
                cancelled_write
                each_reader_has_a_standing_of_its_own
            ]
            downgrade { Downgrade } => [
                it_lets_readers_in
                only_a_writer_can_be_downgraded
                a_lost_hold_cannot_be_downgraded
                it_gives_no_more_time
                a_lost_answer_can_be_asked_for_again
                a_late_copy_does_nothing
                cancelled
                cancelled_it_claims_no_more_than_it_has
                it_changes_the_standing
            ]
            semaphore { kind Semaphore } => [
                permits_are_counted
                impossible_numbers_are_refused
                another_number_is_a_mismatch
                a_large_request_is_not_overtaken
                small_requests_do_not_starve_a_large_one
                a_large_request_that_gives_up_makes_room
                lost_permits_come_back
                cancelled_acquire
                each_permit_has_a_standing_of_its_own
            ]
            reentrant { Nothing } => [
                same_token_and_free_at_zero
                another_owner_waits
                it_is_a_mutex_to_others
                two_tasks_of_one_owner
                one_task_gives_up_and_the_other_gets_in
                a_lost_hold_cannot_be_entered
            ]
            multi { Nothing } => [
                names_are_sorted_and_taken_once
                names_must_be_names
                all_or_nothing
                opposite_orders_do_not_deadlock
                what_is_held_is_kept_while_waiting
                one_that_is_lost_is_the_loss_of_all
                not_kept_it_ends
                asked_for_one_of_them
            ]
            election { kind Election } => [
                everybody_sees_the_leader
                terms_rise
                observers_see_terms_rise
                a_lost_leader_is_replaced
                an_observer_hears_of_a_vacancy
                cancelled_campaign
            ]
            cancel { Nothing } => [
                while_queued
                try_lock
                try_lock_for
                multi
                reenter
                release
                at_the_instant_of_the_grant
                a_task_that_holds
                lost_asked_and_watch
            ]
            loss { Nothing } => [
                run_stops_the_future
                every_future_can_be_spawned
                a_hand_over_that_lapses_lets_in_the_next
                run_gives_the_answer
                run_begins_nothing_after_the_loss
                check_needs_nobody
                an_old_guard_does_not_touch_a_new_hold
                a_release_at_the_end_of_the_window
                a_grant_that_comes_too_late_is_none
                a_grant_whose_answer_is_lost_is_ended
                a_release_that_is_lost_is_tried_again
                a_broken_hold_cannot_be_released
                jeopardy_is_seen_and_passes
                jeopardy_ends_in_loss
            ]
            renewal { Nothing } => [
                a_busy_executor_does_not_starve_it
                another_runtime_may_rest
                the_runtime_may_end
                a_thousand_holds_renew_together
                nothing_is_renewed_after_the_end
                short_holds_leave_no_renewals
                a_stuck_renewal_is_replaced
                a_stuck_renewal_after_a_hand_over_is_replaced
                a_hand_over_is_renewed
                a_guard_outlives_its_client
            ]
            fencing { Nothing } => [
                tokens_rise_however_a_hold_ends
                a_forgotten_name_does_not_start_over
                tokens_are_seeded
                a_late_writer_is_refused
                a_sequencer_survives_being_printed
                a_restart_does_not_start_over
            ]
            check { Nothing } => [
                current_while_it_is_held
                superseded_by_the_next
                released_when_it_was_let_go
                released_when_it_was_broken
                not_current_when_it_ran_out
                unknown_when_it_was_never_given
                over_when_the_name_was_forgotten
            ]
            delays { Delays } => [
                min_hold_keeps_the_name_closed
                min_hold_that_is_over_costs_nothing
                a_closed_name_can_be_broken_open
                min_hold_of_a_multi_lock_that_failed
                min_hold_of_a_hold_that_has_expired
                lock_delay_outlives_the_guard
                lock_delay_after_a_break
                lock_delay_after_a_loss
                no_lock_delay_after_a_release
                a_release_that_is_lost_or_cancelled_is_tried_again
                a_closed_name_is_no_hold
                at_the_instant_of_the_grant_with_a_minimum_hold
            ]
            options { Nothing } => [
                max_hold_ends_the_hold
                max_hold_shorter_than_the_ttl
                max_hold_costs_its_neighbours_nothing
                notes_are_shown
            ]
            closing { Nothing } => [
                while_others_hold
                while_others_wait
                while_others_have_waited
                while_others_ask
                twice_and_used_after
            ]
            names { Nothing } => [
                all_are_different_and_come_back_intact
                a_listing_has_them_all_in_order
                a_prefix_is_no_pattern
                what_is_no_name_is_refused
                kinds_share_one_space
            ]
            durations { Nothing } => [
                options_are_checked_when_set
                ttls_at_their_limits_work
                the_shortest_ttl_can_be_kept
                any_wait_is_possible
                no_time_is_enough_for_a_free_lock
                backoffs_are_checked
            ]
            view { Nothing } => [
                a_view_has_holders_and_line
                a_listing_has_what_is_in_use
                a_watch_tells_of_every_change
                a_watch_tells_of_an_end_by_time
                an_ask_carries_reason_and_who
                an_ask_is_heard_with_the_renewal
                every_holder_is_asked
                a_broken_hold_is_lost
                breaking_lets_the_waiter_in
                a_store_says_what_it_is
            ]
            cell { Cells } => [
                a_stale_version_writes_nothing
                updates_add_up
                versions_never_start_over
                values_at_their_limits
                an_update_may_leave_it
                names_are_different_and_not_locks
            ]
            residue { Nothing } => [
                thousands_of_names
                every_kind
                what_only_time_ends
                what_was_refused
            ]
            blocking { Nothing } => [
                everything_on_a_plain_thread
                threads_take_turns
                a_guard_dropped_on_a_plain_thread
                a_guard_dropped_by_a_panic
                dropped_after_the_runtime
                a_client_dropped_with_its_guards
                closing_waits_for_what_was_dropped
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
                        $crate::run::<Harness>(TAKER, NEED, $crate::suite::boxed::$promise::$case);
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
                    $crate::run_as::<Harness>(TAKER, $crate::Shape::$shape, $crate::suite::boxed::mutex::$case);
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
    (Delays) => {
        $crate::Need::Delays
    };
    (Downgrade) => {
        $crate::Need::Downgrade
    };
    (kind $kind:ident) => {
        $crate::Need::Kind($crate::Kind::$kind)
    };
}
