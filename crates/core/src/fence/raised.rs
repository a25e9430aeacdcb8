//! A fence over a store that can raise a number in one step: what a store's crate need not write again.
//!
//! The common case is one request: raise the name's number to the token, if it is lower. Only when nothing was raised it is looked
//! why. Who can interleave: anybody, between the two; numbers only rise, so what the look shows is a reason that still holds, or the
//! question is asked once more.

use std::time::Duration;

use super::{Fence, Rule, Verdict, storable};
use crate::backend::async_trait;
use crate::lease::Failure;
use crate::lease::tries::Tries;
use crate::{LockName, Result, Token};

/// A number for each name in a store, which only rises. Each method is one attempt; [`Raised`] tries again where that may help.
///
/// Numbers are tokens as databases keep them, 0 and up.
#[async_trait]
pub trait Marks: Send + Sync + 'static {
    /// Where it is, in words and without secrets.
    fn describe(&self) -> String;

    /// For how long it is tried again.
    fn limit(&self) -> Duration;

    /// Raises the name's number to `token` if it is lower, in one step that lasts; whether it was. A name without a number is given
    /// one. With `least`: only if there is a number, and it is at least so high.
    async fn raise(&self, name: &LockName, token: i64, least: Option<i64>) -> Result<bool, Failure>;

    /// The name's number. As lasting as what [`raise`](Marks::raise) said yes to.
    async fn look(&self, name: &LockName) -> Result<Option<i64>, Failure>;

    /// As of [`Fence::probe`].
    async fn probe(&self, number: i64) -> Result<(), Failure>;
}

/// A [`Fence`] over [`Marks`].
#[derive(Debug)]
pub struct Raised<M>(pub M);

impl<M: Marks> Raised<M> {
    /// Whatever is tried here may be done twice.
    fn tries(&self) -> Tries {
        Tries::within(self.0.limit(), self.0.describe())
    }

    async fn show(&self, name: &LockName, token: Token, rule: Rule) -> Result<Verdict> {
        let number = storable(token)?;
        loop {
            let least = rule.needs(token).map(|least| least.get() as i64); // less than the token, so it fits
            if self.tries().insist(|| self.0.raise(name, number, least)).await? {
                return Ok(Verdict::Accepted);
            }
            let highest = self.look(name).await?;
            match Verdict::of(highest, token, rule) {
                // It was too high a moment ago, and is not any more.
                Verdict::Accepted if highest != Some(token) => {}
                verdict => return Ok(verdict),
            }
        }
    }

    async fn look(&self, name: &LockName) -> Result<Option<Token>> {
        let number = self.tries().insist(|| self.0.look(name)).await?;
        Ok(number.map(|number| Token::new(number.max(0) as u64)))
    }
}

#[async_trait]
impl<M: Marks> Fence for Raised<M> {
    fn describe(&self) -> String {
        self.0.describe()
    }

    async fn advance(&self, name: &LockName, token: Token, rule: Rule) -> Result<Verdict> {
        self.show(name, token, rule).await.map_err(|error| error.with_name(name))
    }

    async fn highest(&self, name: &LockName) -> Result<Option<Token>> {
        self.look(name).await.map_err(|error| error.with_name(name))
    }

    async fn probe(&self, number: u64) -> Result<()> {
        let number = (number & i64::MAX as u64) as i64; // another one each time: a database does not write what is there already
        self.tries().insist(|| self.0.probe(number)).await
    }
}
