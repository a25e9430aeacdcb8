//! What a ZooKeeper reads before it begins: its `zoo.cfg`, its number, who may log in, and the arguments of `java`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{CLIENTS, Certificates, ClientCertificate, Spot, TLS, ZooKeeperOptions};
use crate::servers::process::demand;

/// ZooKeeper itself, whose manifest names what else it needs; and what prints its log.
const JARS: [(&str, &str); 2] = [("zookeeper.jar", "libzookeeper-java"), ("slf4j-simple.jar", "libslf4j-java")];

/// What its manifest forgets, and only TLS needs.
const JARS_FOR_TLS: [(&str, &str); 2] = [("netty-codec.jar", "libnetty-java"), ("netty-resolver.jar", "libnetty-java")];

/// Where Debian's packages put their jars.
const JARS_IN: &str = "/usr/share/java";

/// Of a server that is never full of data, and is to begin soon.
const JAVA: [&str; 4] = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"];

/// The class path of some jars; panics, naming its package, if one is not installed.
pub(super) fn class_path(jars: &[(&str, &str)]) -> String {
    let paths: Vec<String> = jars
        .iter()
        .map(|(jar, package)| {
            let path = Path::new(JARS_IN).join(jar);
            assert!(path.is_file(), "{jar} is not installed, and this test needs it: apt-get install {package}");
            path.display().to_string()
        })
        .collect();
    paths.join(":")
}

/// The arguments of `java` before the class to run.
pub(super) fn java(options: &ZooKeeperOptions, dir: &Path) -> Vec<OsString> {
    let mut args: Vec<String> = JAVA.map(str::to_owned).into();
    let more: &[_] = if options.tls.is_some() { &JARS_FOR_TLS } else { &[] };
    args.extend(["-cp".to_owned(), class_path(&[&JARS, more].concat())]);
    // Parents that nobody needs go soon, and not after a minute.
    args.push("-Dznode.container.checkIntervalMs=500".to_owned());
    if let Some(password) = &options.superuser {
        args.push(format!("-Dzookeeper.DigestAuthenticationProvider.superDigest=super:{}", digest("super", password)));
    }
    if !options.sasl.is_empty() {
        args.push(format!("-Djava.security.auth.login.config={}", logins(options, dir).display()));
        args.push("-Dzookeeper.authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider".to_owned());
    }
    args.extend(options.java.iter().cloned());
    args.into_iter().map(OsString::from).collect()
}

/// Writes `zoo.cfg` and says where it is.
pub(super) fn write(
    options: &ZooKeeperOptions,
    spot: &Spot<4>,
    dir: &Path,
    certificates: Option<&Certificates>,
    ensemble: Option<&(usize, String)>,
) -> PathBuf {
    let data = dir.join("data");
    std::fs::create_dir(&data).expect("the directory is ours");
    let mut text = String::new();
    let mut line = |name: &str, value: &str| writeln!(text, "{name}={value}").expect("a String takes everything");
    line("dataDir", &data.display().to_string());
    line("tickTime", &options.tick.as_millis().to_string());
    line("maxSessionTimeout", "60000"); // twenty ticks by itself
    line("clientPort", &spot.for_clients(CLIENTS).port().to_string());
    line("clientPortAddress", &spot.for_clients(CLIENTS).ip().to_string());
    line("admin.enableServer", "false");
    line("maxClientCnxns", "0");
    line("4lw.commands.whitelist", "*");
    line("extendedTypesEnabled", "true");
    if !options.disk {
        line("forceSync", "no");
    }
    if let (Some(pem), Some(clients)) = (certificates, options.tls) {
        line("serverCnxnFactory", "org.apache.zookeeper.server.NettyServerCnxnFactory");
        line("secureClientPort", &spot.for_clients(TLS).port().to_string());
        line("secureClientPortAddress", &spot.for_clients(TLS).ip().to_string());
        line("ssl.keyStore.location", &both(pem, dir).display().to_string());
        line("ssl.keyStore.type", "PEM");
        line("ssl.trustStore.location", &pem.ca.display().to_string());
        line("ssl.trustStore.type", "PEM");
        line("ssl.clientAuth", if clients == ClientCertificate::Demanded { "need" } else { "none" });
    }
    if let Some((number, members)) = ensemble {
        // The first syncs must survive a busy machine, and a leader that is silent is to be missed soon.
        line("initLimit", "100");
        line("syncLimit", "5");
        line("cnxTimeout", "500");
        line("fastleader.maxNotificationInterval", "1000");
        std::fs::write(data.join("myid"), number.to_string()).expect("the directory is ours");
        text += members;
    }
    // The last one counts, as in a file of Java's properties.
    for (name, value) in &options.lines {
        writeln!(text, "{name}={value}").expect("a String takes everything");
    }
    let file = dir.join("zoo.cfg");
    std::fs::write(&file, text).expect("the directory is ours");
    file
}

/// The server's certificate and its key in one file.
fn both(pem: &Certificates, dir: &Path) -> PathBuf {
    let file = dir.join("keystore.pem");
    let [certificate, key] = [&pem.server, &pem.server_key].map(|part| std::fs::read(part).expect("it was just made"));
    std::fs::write(&file, [certificate, key].concat()).expect("the directory is ours");
    file
}

/// Who may log in by SASL, as Java reads it.
fn logins(options: &ZooKeeperOptions, dir: &Path) -> PathBuf {
    let users: String = options.sasl.iter().map(|(name, password)| format!(" user_{name}=\"{password}\"")).collect();
    let text = format!("Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required{users}; }};\n");
    let file = dir.join("jaas.conf");
    std::fs::write(&file, text).expect("the directory is ours");
    file
}

/// What the scheme `digest` keeps of a password.
fn digest(user: &str, password: &str) -> String {
    demand("openssl", "openssl");
    let pipe = "openssl dgst -sha1 -binary | openssl base64";
    let mut shell = Command::new("sh");
    let mut shell = shell.args(["-c", pipe]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("there is a shell");
    write!(shell.stdin.take().expect("piped"), "{user}:{password}").expect("the shell reads");
    let output = shell.wait_with_output().expect("the shell ends");
    String::from_utf8(output.stdout).expect("letters and digits").trim().to_owned()
}
