//! A newest release that cannot be installed is named, and everything else runs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

/// An installer whose mirror does not answer.
const INSTALLER: &str = "#!/bin/sh
[ \"$1\" = --version ] && exit 0
echo 'E: the mirror does not answer' >&2
exit 1
";

#[test]
fn a_release_that_cannot_be_installed_is_named_and_the_command_runs() {
    let folder = std::env::temp_dir().join(format!("idem-not-run-{}", std::process::id()));
    let others = folder.join("others");
    fs::create_dir_all(&others).unwrap();
    let installer = folder.join("mmdebstrap");
    fs::write(&installer, INSTALLER).unwrap();
    fs::set_permissions(&installer, fs::Permissions::from_mode(0o755)).unwrap();
    // If the machine lacks these, xtask must not install them here.
    for program in ["ps", "faketime", "curl"] {
        fs::write(others.join(program), "").unwrap();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::iter::once(folder.clone())
        .chain(std::env::split_paths(&path))
        .chain([others]);
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["servers", "--servers", "newest", "--only", "valkey", "--"])
        .args([
            "sh",
            "-c",
            "echo \"with ${IDEM_TEST_REDIS_URL:-no server}\"",
        ])
        .env("PATH", std::env::join_paths(directories).unwrap())
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .env("CARGO_MANIFEST_DIR", env!("CARGO_MANIFEST_DIR"))
        .env_remove("IDEM_TEST_REDIS_URL")
        .output()
        .unwrap();
    let _ = fs::remove_dir_all(&folder);
    let [out, said] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    assert!(output.status.success(), "{said}");
    assert_eq!(out, "with no server\n", "{said}");
    for words in [
        "NOT STARTED: the newest Valkey: ",
        "the mirror does not answer",
    ] {
        assert!(said.contains(words), "{said}");
    }
}
