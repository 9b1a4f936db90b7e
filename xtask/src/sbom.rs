//! Bill of materials of the command, in the format CycloneDX 1.5.
//!
//! Tools that read the whole workspace would list what other packages enable: this list is that of the program alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value as Json, json};
use toml::Table;

use crate::notices::Crate;

/// The bill with these crates, of which cargo's metadata says more.
pub(crate) fn bill(
    version: &str,
    linked: &BTreeSet<Crate>,
    metadata: &str,
    root: &Path,
) -> anyhow::Result<String> {
    let lock = fs::read_to_string(root.join("Cargo.lock")).context("cannot read Cargo.lock")?;
    let checksums = checksums(&lock)?;
    let metadata: Json = serde_json::from_str(metadata).context("invalid metadata from cargo")?;
    let packages = metadata["packages"].as_array();
    let components = packages.into_iter().flatten().filter_map(|package| {
        let text = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
        let id = (text("name"), text("version"));
        // The command itself is the subject of the bill.
        if id.0 == "idem-cli" || !linked.contains(&id) {
            return None;
        }
        Some(component(&id, &text("license"), checksums.get(&id)))
    });
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "idem-cli",
                "name": "idem",
                "version": version,
                "purl": format!("pkg:cargo/idem-cli@{version}"),
                "licenses": [{ "expression": "MIT OR Apache-2.0" }],
            },
        },
        "components": components.collect::<Vec<_>>(),
    });
    Ok(format!("{bill:#}\n"))
}

fn component((name, version): &Crate, licence: &str, checksum: Option<&String>) -> Json {
    let address = format!("pkg:cargo/{name}@{version}");
    let mut component = json!({
        "type": "library",
        "bom-ref": address,
        "name": name,
        "version": version,
        "purl": address,
    });
    if !licence.is_empty() {
        // Old manifests separate licences by a slash.
        component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
    }
    if let Some(checksum) = checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

/// Reads the checksums of packages. Packages of the workspace have none.
fn checksums(lock: &str) -> anyhow::Result<BTreeMap<Crate, String>> {
    let lock: Table = lock.parse().context("invalid Cargo.lock")?;
    let packages = lock.get("package").and_then(|it| it.as_array());
    let checksums = packages.into_iter().flatten().filter_map(|package| {
        let text = |name: &str| Some(package.get(name)?.as_str()?.to_owned());
        Some(((text("name")?, text("version")?), text("checksum")?))
    });
    Ok(checksums.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bill_has_the_linked_crates_with_their_checksums() {
        let root = std::env::temp_dir().join(format!("idem-sbom-{}", std::process::id()));
        fs::create_dir_all(&root).expect("a folder");
        let lock = "[[package]]\nname = 'a'\nversion = '1.0.0'\nchecksum = 'abc'\n\
                    [[package]]\nname = 'w'\nversion = '2.0.0'\n";
        fs::write(root.join("Cargo.lock"), lock).expect("a file");
        let metadata = json!({ "packages": [
            { "name": "a", "version": "1.0.0", "license": "MIT/Apache-2.0" },
            { "name": "w", "version": "2.0.0", "license": "MIT" },
            { "name": "b", "version": "1.0.0", "license": "MIT" },
            { "name": "idem-cli", "version": "3.0.0", "license": "MIT" },
        ]});
        let pair = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        let linked = [
            pair("a", "1.0.0"),
            pair("w", "2.0.0"),
            pair("idem-cli", "3.0.0"),
        ]
        .into();
        let bill = bill("3.0.0", &linked, &metadata.to_string(), &root).expect("a bill");
        let bill: Json = serde_json::from_str(&bill).expect("JSON");
        let components = &bill["components"];
        assert_eq!(components.as_array().map(Vec::len), Some(2), "{bill:#}");
        assert_eq!(
            components[0],
            json!({
                "type": "library", "bom-ref": "pkg:cargo/a@1.0.0", "name": "a", "version": "1.0.0",
                "purl": "pkg:cargo/a@1.0.0", "licenses": [{ "expression": "MIT OR Apache-2.0" }],
                "hashes": [{ "alg": "SHA-256", "content": "abc" }],
            })
        );
        assert!(components[1].get("hashes").is_none(), "{bill:#}");
        assert_eq!(bill["metadata"]["component"]["version"], "3.0.0");
        let _ = fs::remove_dir_all(root);
    }
}
