//! Retries over a store that answers by a script: listings in any order that break off, and pauses that are asked for.

use super::*;

/// Lists what it is told: the n-th listing gives the n-th rows. Its first head is throttled and asks for a pause.
#[derive(Debug)]
struct Scripted {
    inner: Arc<dyn Store>,
    listings: Vec<Vec<Result<&'static str, ErrorKind>>>,
    listed: AtomicUsize,
}

#[async_trait]
impl Store for Scripted {
    fn location(&self) -> &Location {
        self.inner.location()
    }
    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        let failed = self.listed.fetch_add(1, Ordering::SeqCst) == 0;
        if failed {
            return Err(Error::new(ErrorKind::Throttled, "head", "").with_retry_after(Duration::from_secs(3)));
        }
        self.inner.head(key).await
    }
    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        self.inner.read_into(key, span, buf, options).await
    }
    async fn put(&self, key: &Key, body: Body, options: &PutOptions) -> Result<PutDone> {
        self.inner.put(key, body, options).await
    }
    async fn upload(&self, key: &Key, options: &PutOptions) -> Result<Box<dyn Upload>> {
        self.inner.upload(key, options).await
    }
    fn list(&self, _: &Key, _: ListOptions) -> Listing {
        let number = self.listed.fetch_add(1, Ordering::SeqCst);
        let rows: Vec<Result<Entry>> = self.listings[number]
            .iter()
            .map(|row| match row {
                Ok(name) => Ok(Entry::Object(ObjectMeta {
                    key: key(name),
                    size: 0,
                    version: None,
                    modified: None,
                    checksum: None,
                    permissions: None,
                })),
                Err(kind) => Err(Error::new(*kind, "list", "")),
            })
            .collect();
        futures::stream::iter(rows).boxed()
    }
    async fn delete(&self, key: &Key) -> Result<()> {
        self.inner.delete(key).await
    }
    async fn capabilities(&self) -> Result<Capabilities> {
        self.inner.capabilities().await
    }
}

fn scripted(listings: Vec<Vec<Result<&'static str, ErrorKind>>>, context: &Context) -> Retried {
    let scripted = Scripted {
        inner: memory(),
        listings,
        listed: AtomicUsize::new(0),
    };
    Retried::new(Arc::new(scripted), context)
}

/// Names as they come, and the kind of an error that ends them.
async fn rows_of(store: &Retried) -> Vec<Result<String, ErrorKind>> {
    store
        .list(&Key::ROOT, ListOptions { recursive: true })
        .map(|row| match row {
            Ok(entry) => Ok(entry.key().to_string()),
            Err(error) => Err(error.kind()),
        })
        .collect()
        .await
}

fn owned(rows: &[Result<&str, ErrorKind>]) -> Vec<Result<String, ErrorKind>> {
    rows.iter().map(|row| row.map(str::to_owned)).collect()
}

#[tokio::test]
async fn a_store_that_does_not_sort_loses_no_row() {
    let unsorted = vec![Ok("m"), Ok("z"), Ok("a"), Ok("b")];
    let store = scripted(vec![unsorted.clone()], &context());
    assert_eq!(rows_of(&store).await, owned(&unsorted));
}

#[tokio::test]
async fn a_listing_in_no_order_that_breaks_off_is_an_error_and_not_a_loss() {
    const GONE: Result<&str, ErrorKind> = Err(ErrorKind::Unavailable);
    // The order was broken before, or shows while catching up, or after that.
    for (listings, shown) in [
        (vec![vec![Ok("m"), Ok("a"), GONE]], vec![Ok("m"), Ok("a"), GONE]),
        (
            vec![vec![Ok("m"), Ok("z"), GONE], vec![Ok("m"), Ok("z"), Ok("a")]],
            vec![Ok("m"), Ok("z"), GONE],
        ),
        (
            vec![vec![Ok("a"), Ok("b"), GONE], vec![Ok("a"), Ok("c"), Ok("b")]],
            vec![Ok("a"), Ok("b"), Ok("c"), GONE],
        ),
    ] {
        let store = scripted(listings, &context());
        assert_eq!(rows_of(&store).await, owned(&shown));
    }
    let sorted = vec![vec![Ok("a"), Ok("b"), GONE], vec![Ok("a"), Ok("b"), Ok("c")]];
    let store = scripted(sorted, &context());
    assert_eq!(rows_of(&store).await, owned(&[Ok("a"), Ok("b"), Ok("c")]));
}

#[tokio::test]
async fn listings_that_are_throttled_make_for_fewer_requests() {
    let listings = vec![vec![Err(ErrorKind::Throttled)], vec![Ok("a")]];
    let store = scripted(listings, &context());
    let before = store.requests_max();
    assert_eq!(rows_of(&store).await, owned(&[Ok("a")]));
    assert_eq!(store.requests_max(), before / 2);
}

/// Time is simulated, so the pause is exact.
#[tokio::test(start_paused = true)]
async fn the_pause_a_store_asks_for_is_kept_up_to_the_bound() {
    for (bound_ms, kept_ms) in [(10_000, 3_000), (500, 500)] {
        let limits = Limits {
            retry_pause_ms_max: bound_ms,
            ..limits()
        };
        let context = context_with(limits);
        let store = scripted(Vec::new(), &context);
        put(&store, "a", b"x").await;
        let began = tokio::time::Instant::now();
        store.head(&key("a")).await.unwrap();
        let millis = began.elapsed().as_millis();
        assert!((kept_ms..kept_ms + 10).contains(&millis), "{millis} ms");
    }
}
