//! `index`, `verify`, `inspect`.

use std::path::PathBuf;
use std::process::Command;

use forebay_data::format::parquet::{ParquetOptions, ParquetWriter};
use forebay_data::format::wds::WdsWriter;
use forebay_data::format::{SampleRef, ShardWriter};
use forebay_data::{Dtype, Field, Kind};

use super::sandbox::Sandbox;

/// Two tars of five samples each, with an image and a label.
fn shards() -> Sandbox {
    let sandbox = Sandbox::new();
    for shard in 0..2 {
        let names: Vec<String> = (0..5)
            .flat_map(|sample| ["cls", "jpg"].map(|field| format!("{shard}{sample}.{field}")))
            .collect();
        for name in &names {
            sandbox.file(
                &format!("raw/{name}"),
                if name.ends_with("jpg") { 5000 } else { 1 },
            );
        }
        tar(&sandbox, &format!("d/{shard:06}.tar"), "raw", &names);
    }
    sandbox
}

fn tar(sandbox: &Sandbox, to: &str, from: &str, names: &[String]) {
    let path = sandbox.path(to);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut command = Command::new("tar");
    command
        .args(["--format=ustar", "--mtime=@0", "--absolute-names", "-cf"])
        .arg(path)
        .arg("-C")
        .arg(sandbox.path(from))
        .args(names);
    assert!(command.status().unwrap().success());
}

#[test]
fn index_writes_a_manifest_that_verify_holds_the_data_to() {
    let sandbox = shards();
    sandbox
        .run(["verify", "d"])
        .exits(2)
        .says(&["_forebay.fbi", "forebay index"]);
    sandbox.run(["index", "d"]).exits(0).says(&[
        "indexed 2 shards of format wds with 10 samples",
        "manifest: [DIR]/here/d/_forebay.fbi",
    ]);
    assert_eq!(
        sandbox.names("d"),
        ["000000.tar", "000001.tar", "_SHA256SUMS", "_forebay.fbi"]
    );
    let sums = Command::new("sha256sum")
        .args(["-c", "--strict", "_SHA256SUMS"])
        .current_dir(sandbox.path("d"))
        .output()
        .unwrap();
    assert!(sums.status.success(), "{sums:?}");
    sandbox
        .run(["verify", "d"])
        .exits(0)
        .says(&["2 of 2 shards whole, 10 samples with their checksum"]);
    // Again only with --force.
    sandbox.run(["index", "d"]).exits(1).says(&["already", "--force"]);
    let json = sandbox.run(["index", "--json", "--force", "d"]).exits(0).json();
    assert_eq!((&json["shards"], &json["samples"]), (&2.into(), &10.into()));
    assert_eq!(json["format"]["name"], "wds");
    assert_eq!(json["fingerprint"].as_str().unwrap().len(), 64);
    let elsewhere = sandbox
        .run(["index", "--json", "--output", "m/x.fbi", "d"])
        .exits(0)
        .json();
    assert_eq!(elsewhere["fingerprint"], json["fingerprint"]);
    assert_eq!(sandbox.names("m"), ["x.fbi", "x.sha256"]);
    let sums = Command::new("sha256sum")
        .args(["-c", "--strict", "../m/x.sha256"])
        .current_dir(sandbox.path("d"))
        .output()
        .unwrap();
    assert!(sums.status.success(), "{sums:?}");
    sandbox.run(["verify", "--manifest", "m/x.fbi", "d"]).exits(0);
}

#[test]
fn hashes_that_came_with_the_data_stay() {
    let sandbox = shards();
    std::fs::write(sandbox.path("d/_SHA256SUMS"), "theirs\n").unwrap();
    sandbox
        .run(["index", "d"])
        .exits(0)
        .says(&["_SHA256SUMS: left as it was"]);
    let json = sandbox.run(["index", "--json", "--force", "d"]).exits(0).json();
    assert_eq!(json["sums"], "theirs");
    assert_eq!(sandbox.read("d/_SHA256SUMS"), b"theirs\n");
}

#[test]
fn damage_is_named_and_is_no() {
    let sandbox = shards();
    sandbox.run(["index", "-q", "d"]).exits(0);
    let path = sandbox.path("d/000001.tar");
    let mut bytes = std::fs::read(&path).unwrap();
    // The second sample: a header and a block of label, a header and ten blocks of image each.
    let at = 13 * 512 + 1024 + 600;
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let ran = sandbox
        .run(["verify", "d"])
        .exits(1)
        .says(&["1 of 2 shards whole", "2 damages found"]);
    assert_eq!(
        ran.out,
        "000001.tar: sample crc: sample 1 at byte 6656 does not have its checksum (key 11)\n\
         000001.tar: sha256: the shard has another SHA-256 than when it was indexed\n"
    );
    let json = sandbox.run(["verify", "--json", "d"]).exits(1).json();
    let first = &json["damages"][0];
    assert_eq!(
        (&first["kind"], &first["key"]),
        (&"sample_crc".into(), &"11".into())
    );
    assert_eq!((&first["sample"], &first["offset"]), (&1.into(), &6656.into()));
    // Only the other shard.
    sandbox.run(["verify", "d/000000.tar"]).exits(0);
    sandbox.run(["verify", "d/{000000..000000}.tar"]).exits(0);
    std::fs::remove_file(&path).unwrap();
    let ran = sandbox.run(["verify", "d"]).exits(1);
    assert_eq!(ran.out, "000001.tar: missing: the shard is not there\n");
    let manifest = sandbox.path("d/_forebay.fbi");
    let mut bytes = std::fs::read(&manifest).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&manifest, &bytes).unwrap();
    sandbox
        .run(["verify", "d"])
        .exits(2)
        .says(&["corrupt data", "_forebay.fbi"]);
}

#[test]
fn files_of_a_folder_that_changed_are_named() {
    let sandbox = Sandbox::new();
    for class in ["d/cat", "d/dog"] {
        std::fs::create_dir_all(sandbox.path(class)).unwrap();
        for number in 0..2 {
            std::fs::write(sandbox.path(format!("{class}/{number}.jpg")), class).unwrap();
        }
    }
    sandbox.run(["index", "-q", "d"]).exits(0);
    std::fs::write(sandbox.path("d/cat/00.jpg"), "new").unwrap();
    std::fs::write(sandbox.path("d/dog/1.jpg"), "other").unwrap();
    std::fs::write(sandbox.path("d/dog/0.jpg"), "longer").unwrap();
    let ran = sandbox
        .run(["verify", "d"])
        .exits(1)
        .says(&["2 samples with their checksum", "3 damages found"]);
    assert_eq!(
        ran.out,
        "dog/0.jpg: size: 6 bytes instead of 5 (key dog/0)\n\
         dog/1.jpg: sample crc: sample 3 does not have its checksum (key dog/1)\n\
         cat/00.jpg: unlisted: the manifest does not know it; forebay index --force [DIR]/here/d takes it in\n"
    );
    let json = sandbox.run(["verify", "--json", "d"]).exits(1).json();
    assert_eq!(json["damages"][0]["file"], "dog/0.jpg");
    assert_eq!(json["damages"][2]["file"], "cat/00.jpg");
}

#[test]
fn damages_that_are_not_named_are_counted() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("d")).unwrap();
    let files: Vec<PathBuf> = (0..150)
        .map(|number| sandbox.path(format!("d/{number}.txt")))
        .collect();
    for file in &files {
        std::fs::write(file, "text").unwrap();
    }
    sandbox.run(["index", "-q", "d"]).exits(0);
    for file in &files[..130] {
        std::fs::remove_file(file).unwrap();
    }
    let ran = sandbox
        .run(["verify", "d"])
        .exits(1)
        .says(&["130 damages found, 30 more than are named"]);
    assert_eq!(ran.out.lines().count(), 100);
    let json = sandbox.run(["verify", "--json", "d"]).exits(1).json();
    let counted = (&json["damages_count"], &json["damages_unnamed"]);
    assert_eq!(counted, (&130.into(), &30.into()));
}

#[test]
fn inspect_shows_samples_with_their_fields() {
    let sandbox = shards();
    let ran = sandbox
        .run(["inspect", "d/000001.tar", "--samples", "2"])
        .exits(0);
    for words in [
        "format       wds",
        "samples      5",
        "cls 1 @512, jpg 5000 @1536",
        "000001.tar",
    ] {
        assert!(ran.out.contains(words), "{words}: {}", ran.out);
    }
    assert!(
        !ran.out.contains("12.jpg") && !ran.out.contains("  12  "),
        "{}",
        ran.out
    );
    // Without a manifest, the first shard only, and it says so.
    sandbox
        .run(["inspect", "d"])
        .exits(0)
        .says(&["the first of 2 shards only"]);
    sandbox.run(["index", "-q", "d"]).exits(0);
    let rows = sandbox.run(["inspect", "--json", "d"]).exits(0).json_lines();
    let kinds: Vec<&str> = rows.iter().map(|row| row["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds[..3], ["dataset", "shard", "shard"]);
    assert_eq!(kinds[3..], ["sample"; 10]);
    let label = &rows[3]["fields"][0];
    assert_eq!(
        (&label["name"], &label["offset"], &label["bytes"]),
        (&"cls".into(), &512.into(), &1.into())
    );
    // A shard that no longer fits the manifest can still be looked at.
    std::fs::copy(sandbox.path("d/000000.tar"), sandbox.path("d/000001.tar")).unwrap();
    sandbox.run(["inspect", "d/000001.tar"]).exits(0);
}

#[test]
fn plain_files_are_all_looked_at() {
    let sandbox = Sandbox::new();
    for name in ["cat/0", "cat/1", "dog/0"] {
        sandbox.file(&format!("raw/{name}.jpg"), 500);
    }
    let samples = || {
        let mut rows = sandbox.run(["inspect", "--json", "raw"]).exits(0).json_lines();
        rows.retain(|row| row["kind"] == "sample");
        rows
    };
    let bare = samples();
    assert_eq!(bare.len(), 3, "{bare:?}");
    let told = sandbox.run(["inspect", "raw"]).exits(0);
    assert!(!told.err.contains("shards only"), "{}", told.err);
    let one = [
        "inspect",
        "--json",
        "raw",
        "--sample",
        "dog/0",
        "--extract",
        "bare",
    ];
    let found = sandbox.run(one).exits(0).json_lines();
    sandbox.run(["index", "-q", "raw"]).exits(0);
    assert_eq!(samples(), bare);
    let again = [&one[..6], &["indexed"]].concat();
    assert_eq!(sandbox.run(again).exits(0).json_lines()[0], found[0]);
    assert_eq!(found[0]["number"], 2);
    // The label is that of the class among all classes.
    for name in ["dog_0.image", "dog_0.label"] {
        let read = |dir: &str| sandbox.read(&format!("{dir}/{name}"));
        assert_eq!(read("bare"), read("indexed"), "{name}");
    }
}

/// A folder may be as large as a bucket is: what is read of it is what is shown.
#[test]
fn of_plain_files_only_those_that_are_shown_are_read() {
    let sandbox = Sandbox::new();
    for name in ["cat/0", "cat/1", "dog/0", "dog/1"] {
        sandbox.file(&format!("raw/{name}.jpg"), 500);
    }
    sandbox.file("raw/notes.txt", 10);
    let rows = sandbox
        .run(["inspect", "--json", "raw", "--samples", "2"])
        .exits(0)
        .json_lines();
    let kinds: Vec<&str> = rows.iter().map(|row| row["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["dataset", "shard", "sample", "sample"]);
    let counts =
        ["samples", "files", "files_left_out", "classes"].map(|name| rows[0][name].as_u64().unwrap());
    assert_eq!(counts, [4, 4, 1, 2]);
    assert!(rows[0].get("fingerprint").is_none() && rows[1].get("sha256").is_none());
    let told = sandbox.run(["inspect", "raw", "--samples", "2"]).exits(0);
    assert!(
        told.err.contains("only the samples shown were read"),
        "{}",
        told.err
    );
    sandbox
        .run(["inspect", "raw", "--sample", "cow/0"])
        .exits(2)
        .says(&["no sample 'cow/0'"]);
}

#[test]
fn samples_of_one_key_are_all_there_and_the_first_is_shown() {
    let sandbox = Sandbox::new();
    let text = Field::new("txt", Kind::Text);
    for (name, samples) in [
        (
            "d/000000.tar",
            &[("k", "first"), ("other", "between"), ("k", "second")][..],
        ),
        ("d/000001.tar", &[("k", "third")]),
    ] {
        let mut writer = Box::new(WdsWriter::default());
        for (key, value) in samples {
            let fields = &[(&text, value.as_bytes())];
            writer.add(SampleRef { key, fields }).unwrap();
        }
        std::fs::create_dir_all(sandbox.path("d")).unwrap();
        std::fs::write(sandbox.path(name), writer.finish().unwrap()).unwrap();
    }
    let streamed = sandbox.run(["stream", "d", "--keys"]).exits(0);
    assert_eq!(streamed.out.lines().collect::<Vec<_>>(), ["k", "other", "k", "k"]);
    sandbox.run(["index", "-q", "d"]).exits(0);
    sandbox
        .run(["verify", "d"])
        .exits(0)
        .says(&["4 samples with their checksum"]);
    sandbox
        .run(["inspect", "d", "--sample", "k", "--extract", "out"])
        .exits(0);
    assert_eq!(sandbox.read("out/k.txt"), b"first");
    // Each of them is found by its shard, where it is the first one.
    sandbox
        .run(["inspect", "d/000001.tar", "--sample", "k", "--extract", "third"])
        .exits(0);
    assert_eq!(sandbox.read("third/k.txt"), b"third");
}

#[test]
fn a_sample_is_extracted_into_the_directory_and_nowhere_else() {
    let sandbox = shards();
    sandbox
        .run(["inspect", "d", "--sample", "13", "--extract", "out"])
        .exits(0);
    assert_eq!(sandbox.names("out"), ["13.cls", "13.jpg"]);
    assert_eq!(sandbox.read("out/13.jpg"), sandbox.read("raw/13.jpg"));
    std::fs::write(sandbox.path("out/13.jpg"), "mine").unwrap();
    let again = ["inspect", "d", "--sample", "13", "--extract", "out"];
    sandbox.run(again).exits(1).says(&["--force"]);
    assert_eq!(sandbox.read("out/13.jpg"), b"mine");
    sandbox.run(again.into_iter().chain(["--force"])).exits(0);
    assert_eq!(sandbox.read("out/13.jpg"), sandbox.read("raw/13.jpg"));
    sandbox
        .run(["inspect", "d", "--sample", "99"])
        .exits(2)
        .says(&["no sample '99'"]);
    // Names that lead elsewhere.
    sandbox.file("evil/x.txt", 3);
    let names = [
        "../evil/x.txt".to_owned(),
        sandbox.path("evil/x.txt").display().to_string(),
    ];
    tar(&sandbox, "e/000000.tar", "raw", &names);
    let rows = sandbox
        .run(["inspect", "--json", "e/000000.tar"])
        .exits(0)
        .json_lines();
    for row in rows.iter().filter(|row| row["kind"] == "sample") {
        let key = row["key"].as_str().unwrap().to_owned();
        let ran = sandbox.run([
            "inspect",
            "e/000000.tar",
            "--sample",
            &key,
            "--extract",
            "deep/out",
        ]);
        ran.exits(0);
    }
    assert_eq!(sandbox.names("deep"), ["out"]);
    assert!(
        sandbox
            .names("deep/out")
            .iter()
            .all(|name| name.ends_with("x.txt"))
    );
    assert_eq!(sandbox.names("evil"), ["x.txt"]);
}

#[test]
fn what_is_no_data_set_is_told() {
    let sandbox = shards();
    std::fs::create_dir(sandbox.path("empty")).unwrap();
    sandbox.run(["index", "empty"]).exits(2).says(&["nothing here"]);
    sandbox.run(["index", "nowhere"]).exits(2).says(&["not found"]);
    sandbox
        .run(["index", "d/{0..x}.tar"])
        .exits(2)
        .says(&["a range goes from a number"]);
    sandbox.run(["index", "--format", "nonsense", "d"]).exits(2);
    sandbox.file("bad/000000.tar", 5000);
    sandbox
        .run(["index", "bad"])
        .exits(2)
        .says(&["corrupt data", "bad/000000.tar"]);
    assert_eq!(sandbox.names("bad"), ["000000.tar"]);
}

#[test]
fn raw_tokens_need_to_be_told() {
    let sandbox = Sandbox::new();
    sandbox.file("t/train.bin", 2 * 1000);
    sandbox.run(["index", "t"]).exits(2).says(&["--tokens"]);
    sandbox
        .run(["index", "t", "--records", "raw", "--tokens", "8"])
        .exits(2)
        .says(&["say nothing about"]);
    let args = ["index", "--json", "t", "--tokens", "64", "--dtype", "u16"];
    let json = sandbox.run(args).exits(0).json();
    assert_eq!(json["samples"], 15);
    assert_eq!(json["format"]["params"]["dtype"], "uint16");
    sandbox.run(["verify", "t"]).exits(0);
    sandbox
        .run(["inspect", "t", "--sample", "14", "--extract", "out"])
        .exits(0);
    assert_eq!(
        sandbox.read("out/14.tokens"),
        sandbox.read("t/train.bin")[14 * 128..15 * 128]
    );
}

/// A file of thirty rows in three groups.
fn parquet(sandbox: &Sandbox, name: &str) {
    let number = Field::new(
        "number",
        Kind::Array {
            dtype: Dtype::Uint32,
            shape: Vec::new(),
        },
    );
    let fields = [number, Field::new("text", Kind::Bytes)];
    let options = ParquetOptions {
        group_bytes: 10_000,
        ..ParquetOptions::default()
    };
    let mut writer = Box::new(ParquetWriter::new(&fields, options).unwrap());
    for number in 0..30u32 {
        let (key, text) = (
            format!("k{number}"),
            format!("{number} ").repeat(1000 / (1 + number.to_string().len())),
        );
        let number = number.to_le_bytes();
        let fields = [(&fields[0], &number[..]), (&fields[1], text.as_bytes())];
        let sample = SampleRef {
            key: &key,
            fields: &fields,
        };
        writer.add(sample).unwrap();
    }
    let path = sandbox.path(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, writer.finish().unwrap()).unwrap();
}

#[test]
fn rows_of_parquet_are_streamed_verified_and_looked_at() {
    let sandbox = Sandbox::new();
    parquet(&sandbox, "p/x.parquet");
    let streamed = sandbox
        .run(["stream", "p/x.parquet", "--keys", "--batch-size", "7"])
        .exits(0);
    let keys: Vec<String> = (0..30).map(|row| format!("k{row}")).collect();
    assert_eq!(streamed.out.lines().collect::<Vec<_>>(), keys);
    // Where the column of the keys is not read, numbers stand for them.
    let numbered = sandbox.run(["stream", "p/x.parquet", "--keys", "--fields", "number"]);
    assert!(numbered.exits(0).out.starts_with("x.parquet:0\nx.parquet:1\n"));
    let args = ["stream", "p", "--keys", "--shuffle", "--lanes", "2"];
    let shuffled = sandbox.run(args).exits(0);
    let mut rows: Vec<&str> = shuffled.out.lines().collect();
    assert_ne!(rows, keys);
    rows.sort_by_key(|row| row.trim_start_matches('k').parse::<u32>().unwrap());
    assert_eq!(rows, keys);

    sandbox.run(["index", "-q", "p"]).exits(0);
    sandbox
        .run(["verify", "p"])
        .exits(0)
        .says(&["30 samples with their checksum"]);
    let rows = sandbox.run(["inspect", "--json", "p"]).exits(0).json_lines();
    let groups: Vec<_> = rows.iter().filter(|row| row["kind"] == "group").collect();
    assert_eq!(groups.len(), 3, "{rows:?}");
    let second = &groups[1];
    let row = sandbox.run(["inspect", "--json", "p", "--sample", "12", "--extract", "out"]);
    assert_eq!(row.exits(0).json_lines()[0]["number"], second["number"]);
    assert_eq!(sandbox.names("out"), ["12.__key__", "12.number", "12.text"]);
    assert_eq!(sandbox.read("out/12.number"), 12u32.to_le_bytes());
    assert!(sandbox.read("out/12.text").starts_with(b"12 12 "));

    let path = sandbox.path("p/x.parquet");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = second["offset"].as_u64().unwrap() as usize + 3000;
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let ran = sandbox.run(["verify", "p"]).exits(1);
    assert!(
        ran.out
            .contains("x.parquet: chunk crc: column 'text' of group 1 at byte"),
        "{}",
        ran.out
    );
    sandbox
        .run(["stream", "p"])
        .exits(2)
        .says(&["x.parquet", "row group 1", "checksum"]);
}

/// A `.bin` may be anything, but not where it is numbered as those are that were indexed: an epoch would lack what was added.
#[test]
fn token_files_that_are_new_are_told_by_their_numbers() {
    let sandbox = Sandbox::new();
    for name in ["d/shard-000.bin", "d/shard-009.bin"] {
        sandbox.file(name, 1600);
    }
    let tokens = ["--format", "tokens", "--tokens", "8", "--dtype", "uint16"];
    sandbox
        .run([&["index", "-q", "d"], &tokens[..]].concat())
        .exits(0);
    sandbox.file("d/val.bin", 160);
    sandbox.file("d/shard-more.bin", 160);
    sandbox.run(["verify", "d"]).exits(0);
    sandbox.run(["stream", "d"]).exits(0);
    sandbox.file("d/shard-010.bin", 1600);
    let told = sandbox.run(["verify", "d"]).exits(1);
    assert!(told.out.contains("shard-010.bin: unlisted"), "{}", told.out);
    sandbox
        .run(["stream", "d"])
        .exits(1)
        .says(&["shard-010.bin", "is not in the manifest"])
        .says(&[
            "forebay index --format tokens --param dtype=uint16 --param tokens=8 --force [DIR]/here/d takes",
        ]);
    let anew = ["--param", "dtype=uint16", "--param", "tokens=8", "--force", "d"];
    sandbox
        .run([&["index", "--format", "tokens"], &anew[..]].concat())
        .exits(0)
        .says(&["5 shards of format tokens"]);
    // Nor is an index of one of them made in the place of that of all.
    std::fs::remove_file(sandbox.path("d/_forebay.fbi")).unwrap();
    sandbox
        .run([&["index", "d/shard-000.bin"], &tokens[..]].concat())
        .exits(2)
        .says(&["is not among those that are named"]);
    sandbox
        .run([&["index", "-q", "d/val.bin"], &tokens[..]].concat())
        .exits(0);
}
