//! The smallest blocking client that can tell a Redis what to do, so that tests need no driver to hurt or count one.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::LIMIT;

/// What a server answered. Errors are not among it: they are `Err`, or a panic where a test did not expect one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing.
    Nil,
    /// A number.
    Int(i64),
    /// A status or a string; what is not UTF-8 in it is replaced.
    Text(String),
    /// Several; pushes too, and maps as keys and values in turn.
    List(Vec<Reply>),
}

impl Reply {
    /// Whether there was nothing.
    pub fn is_nil(&self) -> bool {
        *self == Reply::Nil
    }

    /// The text, also of a number; panics on anything else.
    #[track_caller]
    pub fn text(self) -> String {
        match self {
            Reply::Text(text) => text,
            Reply::Int(number) => number.to_string(),
            other => panic!("not a text but {other:?}"),
        }
    }

    /// The number, also one written as text; panics on anything else.
    #[track_caller]
    pub fn int(self) -> i64 {
        match &self {
            Reply::Int(number) => Some(*number),
            Reply::Text(text) => text.parse().ok(),
            _ => None,
        }
        .unwrap_or_else(|| panic!("not a number but {self:?}"))
    }

    /// The list; panics on anything else.
    #[track_caller]
    pub fn list(self) -> Vec<Reply> {
        match self {
            Reply::List(list) => list,
            other => panic!("not a list but {other:?}"),
        }
    }

    /// The list of texts; panics on anything else.
    #[track_caller]
    pub fn texts(self) -> Vec<String> {
        self.list().into_iter().map(Reply::text).collect()
    }
}

/// One connection, for what must happen on one: `WAIT`, `MULTI`, `SUBSCRIBE`.
#[derive(Debug)]
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Connects; nothing is sent yet.
    pub fn open(to: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&to, LIMIT)?;
        stream.set_nodelay(true)?;
        let mut connection = Connection(BufReader::new(stream));
        connection.patience(LIMIT)?;
        Ok(connection)
    }

    /// How long to wait for an answer.
    pub fn patience(&mut self, limit: Duration) -> io::Result<()> {
        self.0.get_ref().set_read_timeout(Some(limit))
    }

    /// Sends a command and reads its answer; an error of the server is an error here too, in its own words.
    pub fn call(&mut self, command: &[&str]) -> io::Result<Reply> {
        self.send(command)?;
        self.read()
    }

    /// Sends a command.
    pub fn send(&mut self, command: &[&str]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", command.len());
        for word in command {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(request.as_bytes())
    }

    /// Reads an answer, or what was published.
    pub fn read(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (kind, rest) = line.trim_end().split_at_checked(1).ok_or(io::ErrorKind::InvalidData)?;
        let number = || rest.parse::<i64>().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, line.clone()));
        match kind {
            "-" => Err(io::Error::other(rest.to_owned())),
            "+" | "," | "#" => Ok(Reply::Text(rest.to_owned())),
            "_" => Ok(Reply::Nil),
            ":" => number().map(Reply::Int),
            "$" | "*" if number()? < 0 => Ok(Reply::Nil),
            "$" => {
                let mut bytes = vec![0; number()? as usize + 2];
                self.0.read_exact(&mut bytes)?;
                Ok(Reply::Text(String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned()))
            }
            "*" | ">" | "~" => (0..number()?).map(|_| self.read()).collect::<io::Result<_>>().map(Reply::List),
            "%" => (0..2 * number()?).map(|_| self.read()).collect::<io::Result<_>>().map(Reply::List),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, line)),
        }
    }
}
