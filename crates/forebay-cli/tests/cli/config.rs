//! Settings: options over variables over the file over defaults, and clear complaints.

use super::sandbox::Sandbox;

fn value(sandbox: &Sandbox, args: &[&str], key: &str) -> (String, String) {
    let args: Vec<&str> = ["config", "--json"].iter().chain(args).copied().collect();
    let rows = sandbox.run(args).exits(0).json_lines();
    let row = rows.into_iter().find(|row| row["key"] == key).unwrap();
    let text = |field: &str| row[field].as_str().unwrap_or("").to_owned();
    (text("value"), text("from"))
}

#[test]
fn options_count_before_variables_before_the_file_before_defaults() {
    let sandbox = Sandbox::new();
    let key = "limits.part_bytes";
    let found = |sandbox: &Sandbox, args: &[&str]| value(sandbox, args, key);
    assert_eq!(found(&sandbox, &[]), ("8MiB".into(), "default".into()));
    let dir = sandbox.home().join(".config/forebay");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("config.toml"), "[limits]\npart_bytes = \"16MiB\"\n").unwrap();
    assert_eq!(found(&sandbox, &[]), ("16MiB".into(), "file".into()));
    let sandbox = sandbox.var("FOREBAY_PART_SIZE", "32MiB");
    assert_eq!(found(&sandbox, &[]), ("32MiB".into(), "env".into()));
    assert_eq!(
        found(&sandbox, &["--part-size", "64MiB"]),
        ("64MiB".into(), "flag".into())
    );
    std::fs::write(sandbox.path("other.toml"), "state_dir = \"/elsewhere\"\n").unwrap();
    let args = ["--config", "other.toml"];
    assert_eq!(
        value(&sandbox, &args, "state_dir"),
        ("/elsewhere".into(), "file".into())
    );
    let sandbox = sandbox.var("FOREBAY_CONFIG", "other.toml");
    assert_eq!(
        value(&sandbox, &[], "state_dir"),
        ("/elsewhere".into(), "file".into())
    );
}

#[test]
fn people_see_where_a_setting_comes_from() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("c.toml"), "\n[disk]\nengine = \"psync\"\n").unwrap();
    let ran = sandbox
        .run(["config", "--config", "c.toml"])
        .exits(0)
        .says(&["configuration file: c.toml"]);
    let line = ran
        .out
        .lines()
        .find(|line| line.starts_with("disk.engine"))
        .unwrap();
    assert_eq!(
        line.split_whitespace().collect::<Vec<_>>(),
        ["disk.engine", "psync", "c.toml:3"]
    );
}

#[test]
fn mistakes_in_the_file_are_told_with_their_line() {
    let sandbox = Sandbox::new();
    for (text, words) in [
        (
            "[limits]\npart_byte = 1\n",
            &["c.toml:2", "limits.part_byte", "did you mean limits.part_bytes"][..],
        ),
        ("[limits]\npart_bytes = \"many\"\n", &["c.toml:2", "many", "size"]),
        ("[disk]\nengine = \"spdk\"\n", &["c.toml:2", "auto, uring, psync"]),
        ("[fabric]\nx = 1\n", &["c.toml:1", "forebay config"]),
        (
            "[limits]\nworker_threads = 30000\n",
            &["c.toml:2", "30000", "at most 1024"],
        ),
        (
            "[limits]\nring_entries = 4000000000\n",
            &["c.toml:2", "at most 32768"],
        ),
        ("cache = \"/nvme/cache\"\n", &["c.toml:1", "directory:size"]),
        ("[cachee]\nx = 1\n", &["c.toml:1", "did you mean cache"]),
        ("[limits\n", &["c.toml:1"]),
    ] {
        std::fs::write(sandbox.path("c.toml"), text).unwrap();
        sandbox
            .run(["ls", ".", "--config", "c.toml"])
            .exits(2)
            .says(words);
    }
    sandbox
        .run(["ls", ".", "--config", "none.toml"])
        .exits(2)
        .says(&["not found", "none.toml"]);
}

#[test]
fn mistakes_in_variables_name_the_variable() {
    for (name, value) in [
        ("FOREBAY_PART_SIZE", "big"),
        ("FOREBAY_CONCURRENCY", "0"),
        ("FOREBAY_CONCURRENCY", "1000000"),
        ("FOREBAY_BUFFER_MEMORY", "8000PB"),
        ("FOREBAY_CACHE", "somewhere"),
        ("FOREBAY_CACHE", ":1GiB"),
        ("FOREBAY_S3_ENDPOINT", "host"),
        ("FOREBAY_ENGINE", "fast"),
        ("FOREBAY_LOG", "forebay=nonsense"),
    ] {
        Sandbox::new()
            .var(name, value)
            .run(["ls", "."])
            .exits(2)
            .says(&[name, "hint: "]);
    }
}

#[test]
fn an_empty_variable_is_none_and_logs_go_to_stderr() {
    let sandbox = Sandbox::new()
        .var("FOREBAY_PART_SIZE", "")
        .var("FOREBAY_LOG", "trace");
    let ran = sandbox.run(["ls", "."]).exits(0);
    assert_eq!(ran.out, "");
}

#[test]
fn the_cache_is_a_setting_like_others() {
    let sandbox = Sandbox::new();
    assert_eq!(value(&sandbox, &[], "cache"), (String::new(), "default".into()));
    let sandbox = sandbox.var("FOREBAY_CACHE", "/nvme/cache:1GiB");
    let by_env = ("/nvme/cache:1GiB".into(), "env".into());
    assert_eq!(value(&sandbox, &[], "cache"), by_env);
    let args = ["--cache", "blocks:2GiB", "--cache-immutable"];
    assert_eq!(
        value(&sandbox, &args, "cache"),
        ("blocks:2GiB".into(), "flag".into())
    );
    assert_eq!(
        value(&sandbox, &args, "cache_immutable"),
        ("true".into(), "flag".into())
    );
}
