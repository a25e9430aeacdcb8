//! Selling the last item: a thousand items, eight processes, and a number that says how many are left.
//!
//! The processes are the test binary itself: a test called `shop` does nothing unless [`order`] says what to do, and [`sell`]
//! starts the binary eight times with only that test to run. All eight begin together. Where nothing is locked they meet
//! between the first reading and the first writing, so that the race is seen whatever the machine does.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use tenure_core::retry::Retries;
use tenure_core::{Client, Result};

/// How many there are to sell.
pub const ITEMS: u32 = 1_000;
/// How many processes sell them.
const SHOPS: usize = 8;
/// The variable that makes the `shop` test a shop: the way, and where.
const SHOP: &str = "TENURE_SHOP";
/// What a shop's lines begin with, since the test runner prints there too.
const MARK: &str = "@shop ";

/// What this process was started to do, if it is a shop: the way it sells, and where.
pub fn order() -> Option<(String, String)> {
    let order = std::env::var(SHOP).ok()?;
    let (way, place) = order.split_once('|')?;
    Some((way.to_owned(), place.to_owned()))
}

/// Waits until all shops are here. Each comes once.
pub fn meet() {
    say("here");
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).expect("whoever started this process speaks");
}

/// Says how many were sold. The last thing a shop does.
pub fn sold(count: u32) {
    say(&format!("sold {count}"));
}

/// Has eight processes sell, in one way; how many they sold together.
pub fn sell(way: &str, place: &str) -> u32 {
    let mut shops: Vec<Shop> = (0..SHOPS).map(|_| Shop::start(way, place)).collect();
    for shop in &mut shops {
        assert_eq!(shop.hear(), "here", "{way}");
    }
    for shop in &mut shops {
        shop.process.stdin.as_mut().expect("piped").write_all(b"go\n").expect("it listens");
    }
    let count = |shop: &mut Shop| shop.hear().strip_prefix("sold ").and_then(|count| count.parse::<u32>().ok());
    shops.iter_mut().map(|shop| count(shop).expect("a shop says what it sold")).sum()
}

/// Sells one more from the cell `stock`, by a process that has sold so many; whether there was one left.
///
/// # Cancel safety
/// Dropped, it may have been sold or not.
pub async fn sell_from_cell(client: &Client, count: u32) -> Result<bool> {
    loop {
        let mut was_sold = false;
        let one_less = |value: Option<&[u8]>| {
            let mut stock = Stock::read(value?);
            let mine = stock.sold.entry(std::process::id()).or_default();
            assert!(*mine >= count, "{mine} of {count}: what was sold here was overwritten");
            was_sold = *mine > count;
            if was_sold {
                return None;
            }
            *mine += 1;
            stock.left = stock.left.checked_sub(1)?;
            Some(stock.to_string().into_bytes())
        };
        match client.cell("stock")?.update(one_less).await {
            Ok(updated) => return Ok(was_sold || updated.is_some()),
            // Too many contenders for once; or no answer, and then it may be done or not.
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    }
}

/// What is in the cell: how many are left, and how many each process has sold. So whoever has no answer finds out whether its write
/// was done.
struct Stock {
    left: u32,
    sold: BTreeMap<u32, u32>,
}

impl Stock {
    /// `997 4711:2 4712:1`
    fn read(value: &[u8]) -> Self {
        let mut words = std::str::from_utf8(value).expect("it is text").split(' ');
        let number = |word: &str| word.parse().expect("a number");
        let left = words.next().map(number).expect("how many are left");
        let sold = words.map(|word| word.split_once(':').map(|(process, count)| (number(process), number(count))));
        Stock { left, sold: sold.map(|sold| sold.expect("who has sold how many")).collect() }
    }
}

impl fmt::Display for Stock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.left)?;
        self.sold.iter().try_for_each(|(process, count)| write!(f, " {process}:{count}"))
    }
}

/// Pauses before the next try. Eight at once are many, and trying for long is no failure here.
///
/// # Cancel safety
/// It only sleeps.
pub async fn pause(retries: &mut Retries) {
    if retries.pause().await.is_err() {
        *retries = Retries::new();
    }
}

fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{what}").and_then(|()| out.flush()).expect("whoever started this process listens");
}

/// One process. Killed when dropped.
struct Shop {
    process: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Shop {
    fn start(way: &str, place: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("the test binary knows where it is"))
            .args(["--exact", "shop", "--nocapture"])
            .env(SHOP, format!("{way}|{place}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test binary can be started again");
        let out = BufReader::new(process.stdout.take().expect("piped"));
        Shop { process, out }
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.out.read_line(&mut line).expect("it writes text") > 0, "a shop ended without a word");
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim_end().to_owned();
            }
        }
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
