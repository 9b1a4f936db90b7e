//! The inputs of a target: one file with one input a line.
//!
//! Bytes that are no printable ASCII are escaped as in a Rust byte string. A line that begins with `#` is a comment: it
//! says why the input below it is worth keeping. Files of their own for each input would be binary, and nobody could
//! read a change of them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// Path of the file with the inputs of a target.
pub fn path(target: &str) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.join("corpus").join(format!("{target}.txt"))
}

/// Reads the inputs of a target.
///
/// # Errors
/// If the file is unreadable, or a line of it malformed.
pub fn read(target: &str) -> anyhow::Result<Vec<Vec<u8>>> {
    let path = path(target);
    let text = fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| unescape(line).with_context(|| format!("{}: {line}", path.display())))
        .collect()
}

/// Writes each input of a target into a file of its own, as libFuzzer reads them.
///
/// # Errors
/// If reading or writing fails.
pub fn unpack(target: &str, folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    for (number, input) in read(target)?.into_iter().enumerate() {
        fs::write(folder.join(format!("seed-{number}")), input)?;
    }
    Ok(())
}

/// Adds the files of a folder to the inputs of a target, unless they are among them. Returns their number.
///
/// # Errors
/// If reading or writing fails.
pub fn pack(target: &str, folder: &Path) -> anyhow::Result<usize> {
    let known = read(target)?;
    let files = fs::read_dir(folder)?.map(|file| fs::read(file?.path()));
    let mut found = files.collect::<io::Result<Vec<_>>>()?;
    found.retain(|input| !known.contains(input));
    found.sort_by_key(|input| (input.len(), input.clone()));
    found.dedup();
    let mut text = fs::read_to_string(path(target))?;
    for input in &found {
        text.push_str(&escape(input));
        text.push('\n');
    }
    fs::write(path(target), text)?;
    Ok(found.len())
}

/// Writes an input as a line.
fn escape(input: &[u8]) -> String {
    let text = input.escape_ascii().to_string();
    // A line that ends in a space, or that begins like a comment, would not survive.
    let text = match text.strip_suffix(' ') {
        Some(start) => format!("{start}\\x20"),
        None => text,
    };
    match text.strip_prefix('#') {
        Some(rest) => format!("\\x23{rest}"),
        None => text,
    }
}

/// Reads a line that [`escape`] wrote, or a person.
fn unescape(line: &str) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(line.len());
    let mut rest = line.as_bytes();
    while let [byte, after @ ..] = rest {
        let (byte, after) = match (byte, after) {
            (b'\\', [b'n', after @ ..]) => (b'\n', after),
            (b'\\', [b'r', after @ ..]) => (b'\r', after),
            (b'\\', [b't', after @ ..]) => (b'\t', after),
            (b'\\', [escaped @ (b'\\' | b'"' | b'\''), after @ ..]) => (*escaped, after),
            (b'\\', [b'x', high, low, after @ ..]) => {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits)?;
                (u8::from_str_radix(digits, 16)?, after)
            }
            (b'\\', _) => bail!("an unknown escape"),
            (byte, after) => (*byte, after),
        };
        bytes.push(byte);
        rest = after;
    }
    Ok(bytes)
}

/// Checks that an input survives its way through a file.
///
/// # Errors
/// If it does not.
pub fn check(input: &[u8]) -> anyhow::Result<()> {
    let line = escape(input);
    if line.contains('\n') || line.starts_with('#') || unescape(&line)? != input {
        bail!("{line} is not what was written");
    }
    Ok(())
}
