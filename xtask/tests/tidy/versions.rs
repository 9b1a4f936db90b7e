//! Check of the table of versions: it has what the tests wrote down.

#[path = "../../src/tested.rs"]
mod tested;

use std::path::Path;

use self::tested::{FILE, PAGES, Tested};

#[test]
fn the_table_of_versions_is_that_of_the_last_run() {
    let manifest_dir = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    let root = Path::new(&manifest_dir).parent().unwrap();
    let tested = Tested::read(root).unwrap();
    let written = std::fs::read_to_string(root.join(FILE)).unwrap();
    assert_eq!(tested.json().unwrap(), written, "{FILE} has another form");
    for page in PAGES {
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        let expected = tested.replaced(&text).unwrap();
        assert!(
            text == expected,
            "{page} has another table; run `cargo xtask versions`"
        );
    }
}
