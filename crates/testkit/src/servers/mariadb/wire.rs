//! As much of MySQL's protocol as a test needs to look behind a store's back: text queries on a Unix socket, as a user
//! without a password.

use std::io::{self, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::LIMIT;

/// One session, for what must happen in one: a transaction, `GET_LOCK`, `SET`. It ends when dropped.
#[derive(Debug)]
pub struct Session {
    stream: BufReader<UnixStream>,
    id: u32,
}

// What we say we can do: protocol 4.1, a database in the greeting, the name of the way to prove who we are, several
// statements and so several results.
const CAPABILITIES: u32 = 0x0000_0200 | 0x0000_8000 | 0x0000_0008 | 0x0008_0000 | 0x0001_0000 | 0x0002_0000;
const LARGEST_PACKET: u32 = 1 << 24;
const UTF8MB4: u8 = 45;
const QUERY: u8 = 3;
const MORE_RESULTS: u16 = 8;

impl Session {
    /// Opens one as a user that needs no password.
    pub(super) fn open(socket: &Path, user: &str, database: &str) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let mut session = Session { stream: BufReader::new(stream), id: 0 };
        let (hello, number) = session.packet()?;
        session.id = connection_id(&hello).ok_or(io::ErrorKind::InvalidData)?;
        let mut answer = CAPABILITIES.to_le_bytes().to_vec();
        answer.extend(LARGEST_PACKET.to_le_bytes());
        answer.push(UTF8MB4);
        answer.extend([0; 23]);
        for text in [user, "", database, "mysql_native_password"] {
            answer.extend(text.bytes()); // the empty one is the password's proof, whose length is one byte: 0
            answer.push(0);
        }
        session.write(number + 1, &answer)?;
        loop {
            match session.packet()? {
                (packet, _) if packet.first() == Some(&0) => return Ok(session),
                // Another way to prove it; with no password there is nothing to prove.
                (packet, number) if packet.first() == Some(&0xFE) => session.write(number + 1, &[])?,
                _ => return Err(io::Error::other("it wants more than a name")),
            }
        }
    }

    /// How long to wait for an answer.
    pub fn patience(&mut self, limit: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(limit))
    }

    /// What `CONNECTION_ID()` says, and `KILL` wants to know.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Runs one or more statements, and gives the rows of all of them as text; NULL is an empty one. An error of the
    /// server is an error here too: its number, its SQLSTATE, and its own words.
    pub fn sql(&mut self, sql: &str) -> io::Result<Vec<Vec<String>>> {
        self.send(sql)?;
        self.read()
    }

    /// Sends statements; [`read`](Session::read) has the answer.
    pub fn send(&mut self, sql: &str) -> io::Result<()> {
        self.write(0, &[&[QUERY], sql.as_bytes()].concat())
    }

    /// Reads the answer to what was sent.
    pub fn read(&mut self) -> io::Result<Vec<Vec<String>>> {
        let mut rows = Vec::new();
        while self.read_result(&mut rows)? & MORE_RESULTS != 0 {}
        Ok(rows)
    }

    /// Reads one result; gives the server's status after it.
    fn read_result(&mut self, rows: &mut Vec<Vec<String>>) -> io::Result<u16> {
        let (head, _) = self.packet()?;
        if head.first() == Some(&0) {
            return status_of_ok(&head).ok_or(io::ErrorKind::InvalidData.into());
        }
        while !is_end(&self.packet()?.0) {} // the columns
        loop {
            let (row, _) = self.packet()?;
            if is_end(&row) {
                return Ok(u16::from_le_bytes([row[3], row[4]]));
            }
            rows.push(columns(&row).ok_or(io::ErrorKind::InvalidData)?);
        }
    }

    fn write(&mut self, number: u8, body: &[u8]) -> io::Result<()> {
        let mut packet = (body.len() as u32).to_le_bytes()[..3].to_vec();
        packet.push(number);
        packet.extend(body);
        self.stream.get_mut().write_all(&packet)
    }

    /// A packet that is no error, and its number.
    fn packet(&mut self) -> io::Result<(Vec<u8>, u8)> {
        let mut head = [0; 4];
        self.stream.read_exact(&mut head)?;
        let mut body = vec![0; u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize];
        self.stream.read_exact(&mut body)?;
        if body.first() == Some(&0xFF) { Err(error(&body)) } else { Ok((body, head[3])) }
    }
}

/// After the protocol's version and the server's, which ends with a zero.
fn connection_id(hello: &[u8]) -> Option<u32> {
    let end = hello.iter().position(|byte| *byte == 0)?;
    Some(u32::from_le_bytes(hello.get(end + 1..end + 5)?.try_into().ok()?))
}

/// After the number of rows and the last number that was drawn.
fn status_of_ok(ok: &[u8]) -> Option<u16> {
    let (_, rest) = number(ok.get(1..)?)?;
    let (_, rest) = number(rest)?;
    Some(u16::from_le_bytes(rest.get(..2)?.try_into().ok()?))
}

fn is_end(packet: &[u8]) -> bool {
    packet.first() == Some(&0xFE) && packet.len() == 5
}

/// The texts of a row.
fn columns(mut row: &[u8]) -> Option<Vec<String>> {
    let mut columns = Vec::new();
    while let Some(first) = row.first() {
        let (length, rest) = if *first == 0xFB { (0, &row[1..]) } else { number(row)? }; // 0xFB is NULL
        let (text, rest) = rest.split_at_checked(length)?;
        columns.push(String::from_utf8_lossy(text).into_owned());
        row = rest;
    }
    Some(columns)
}

/// A number of one byte, or of as many as its first byte says; and what follows it.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let length = match first {
        0xFC => 2,
        0xFD => 3,
        0xFE => 8,
        small => return Some((usize::from(*small), rest)),
    };
    let (digits, rest) = rest.split_at_checked(length)?;
    Some((digits.iter().rev().fold(0, |sum, digit| sum << 8 | usize::from(*digit)), rest))
}

/// `1205 (HY000): Lock wait timeout exceeded; try restarting transaction`
fn error(packet: &[u8]) -> io::Error {
    let code = packet.get(1..3).map_or(0, |code| u16::from_le_bytes([code[0], code[1]]));
    let text = String::from_utf8_lossy(packet.get(3..).unwrap_or_default()).into_owned();
    match text.strip_prefix('#').and_then(|text| text.split_at_checked(5)) {
        Some((state, text)) => io::Error::other(format!("{code} ({state}): {text}")),
        None => io::Error::other(format!("{code}: {text}")),
    }
}
