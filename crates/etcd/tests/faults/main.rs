//! Real clusters, hurt in every way that is known: what the store promises holds. Every case has three members of its own, each
//! in its own network where the machine allows that.

mod clients;
mod closed;
mod leader;
mod leases;
mod member;
mod replies;
mod space;
mod stage;
