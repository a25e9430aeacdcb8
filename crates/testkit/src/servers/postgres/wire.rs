//! As much of PostgreSQL's protocol as a test needs to look behind a store's back: simple queries on a Unix socket, whose
//! visitors are trusted.

use std::io::{self, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::LIMIT;

/// One session, for what must happen in one: a transaction, an advisory lock, `SET`. It ends when dropped.
#[derive(Debug)]
pub struct Session {
    stream: BufReader<UnixStream>,
    pid: u32,
}

/// A message: what it is, and what is in it.
type Message = (u8, Vec<u8>);

const PROTOCOL_3_0: u32 = 196_608;

impl Session {
    /// Opens one as a user that needs no password.
    pub(super) fn open(socket: &Path, user: &str, database: &str) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let mut session = Session { stream: BufReader::new(stream), pid: 0 };
        let mut hello = PROTOCOL_3_0.to_be_bytes().to_vec();
        for word in ["user", user, "database", database, "application_name", "tenure-testkit"] {
            hello.extend(word.bytes());
            hello.push(0);
        }
        hello.push(0);
        session.write(None, &hello)?;
        loop {
            match session.message()? {
                (b'R', demand) if demand != [0; 4] => return Err(io::Error::other("it asks for a password")),
                (b'K', key) => session.pid = u32::from_be_bytes(key[..4].try_into().map_err(io::Error::other)?),
                (b'E', fields) => return Err(error(&fields)),
                (b'Z', _) => return Ok(session),
                _ => {}
            }
        }
    }

    /// How long to wait for an answer.
    pub fn patience(&mut self, limit: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(limit))
    }

    /// The process that serves this session, as `pg_stat_activity` has it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Runs one or more statements, and gives the rows of all of them as text; NULL is an empty one. An error of the
    /// server is an error here too: its SQLSTATE, and its own words.
    pub fn sql(&mut self, sql: &str) -> io::Result<Vec<Vec<String>>> {
        self.send(sql)?;
        self.read()
    }

    /// Sends statements; [`read`](Session::read) has the answer.
    pub fn send(&mut self, sql: &str) -> io::Result<()> {
        self.write(Some(b'Q'), &[sql.as_bytes(), &[0]].concat())
    }

    /// Reads the answer to what was sent.
    pub fn read(&mut self) -> io::Result<Vec<Vec<String>>> {
        let (mut rows, mut refused) = (Vec::new(), None);
        loop {
            match self.message()? {
                (b'D', row) => rows.push(columns(&row).ok_or(io::ErrorKind::InvalidData)?),
                (b'E', fields) => refused = Some(error(&fields)),
                (b'Z', _) => return refused.map_or(Ok(rows), Err),
                _ => {}
            }
        }
    }

    fn write(&mut self, kind: Option<u8>, body: &[u8]) -> io::Result<()> {
        let length = (body.len() as u32 + 4).to_be_bytes();
        let message: Vec<u8> = kind.into_iter().chain(length).chain(body.iter().copied()).collect();
        self.stream.get_mut().write_all(&message)
    }

    fn message(&mut self) -> io::Result<Message> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut body = vec![0; (length as usize).checked_sub(4).ok_or(io::ErrorKind::InvalidData)?];
        self.stream.read_exact(&mut body)?;
        Ok((head[0], body))
    }
}

/// The texts of a row.
fn columns(row: &[u8]) -> Option<Vec<String>> {
    let (mut row, mut columns) = (row.get(2..)?, Vec::new());
    while !row.is_empty() {
        let (length, rest) = row.split_at_checked(4)?;
        let length = i32::from_be_bytes(length.try_into().ok()?).max(0) as usize; // NULL is -1
        let (text, rest) = rest.split_at_checked(length)?;
        columns.push(String::from_utf8_lossy(text).into_owned());
        row = rest;
    }
    Some(columns)
}

/// `55P03: canceling statement due to lock timeout`
fn error(fields: &[u8]) -> io::Error {
    let field = |kind: u8| {
        let field = fields.split(|byte| *byte == 0).find(|field| field.first() == Some(&kind));
        field.map(|field| String::from_utf8_lossy(&field[1..]).into_owned()).unwrap_or_default()
    };
    io::Error::other(format!("{}: {}", field(b'C'), field(b'M')))
}
