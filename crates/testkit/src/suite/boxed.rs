//! Every case behind a plain function pointer: so it is compiled once, here, and not once more for every store. A build of all
//! stores' suites takes a third of the time for it.

use std::future::Future;
use std::pin::Pin;

use crate::{Scene, Shape};

/// A case at work.
pub type Playing<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;
/// A case of [`cases!`](crate::cases).
pub type Case = for<'a> fn(&'a Scene) -> Playing<'a>;
/// A case of [`mutex_cases!`](crate::mutex_cases), which also takes the kind that plays the mutex.
pub type MutexCase = for<'a> fn(&'a Scene, Shape) -> Playing<'a>;

macro_rules! promises {
    ($($promise:ident { $($need:tt)+ } => [ $($case:ident)+ ])+) => {
        $(
            #[allow(missing_docs, reason = "the case itself says it")]
            pub mod $promise {
                $(
                    pub fn $case(scene: &crate::Scene) -> super::Playing<'_> {
                        Box::pin(crate::suite::$promise::$case(scene))
                    }
                )+
            }
        )+
    };
}

macro_rules! as_mutex {
    ($as:ident => $shape:ident [ $($case:ident)+ ]) => {
        $(
            pub fn $case(scene: &crate::Scene, shape: crate::Shape) -> super::Playing<'_> {
                Box::pin(crate::suite::mutex::$case(scene, shape))
            }
        )+
    };
}

crate::cases! { promises }

/// The cases of the mutex.
#[allow(missing_docs, reason = "the case itself says it")]
pub mod mutex {
    crate::mutex_cases! { as_mutex, any => Any }
}
