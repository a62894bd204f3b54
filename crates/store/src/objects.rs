//! The objects of a place, by the crate `object_store`.

use crate::fetch::{PART, Part};
use crate::transfer::{SLOW, transfer};
use crate::url::{Place, Scheme, parse};
use crate::{Object, StoreError};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{
    BackoffConfig, ClientConfigKey, Error, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload, RetryConfig,
};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// S3 takes at most 10,000 parts.
const MAX_PARTS: u64 = 9_000;
/// Small requests under way at once.
const REQUESTS_AT_ONCE: usize = 16;
/// Time for one request, with a part of a file.
const REQUEST: Duration = Duration::from_secs(120);
/// Time in which a request is repeated.
const REPEATED: Duration = Duration::from_secs(10);
const REPEATS: usize = 2;

/// The objects of a place, whose names are relative to it.
pub(crate) struct Objects {
    url: String,
    scheme: Scheme,
    store: Arc<dyn ObjectStore>,
    prefix: Key,
    runtime: Runtime,
}

impl Objects {
    pub fn open(url: &str) -> Result<Self, StoreError> {
        let place = parse(url)?;
        let wrong = |problem: String| StoreError::Url { url: url.into(), problem };
        let prefix = Key::parse(place.prefix).map_err(|error| wrong(error.to_string()))?;
        let store = connect(place).map_err(|error| failed("open", url.into(), place.scheme, &error))?;
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime without threads starts");
        Ok(Self { url: url.trim_end_matches('/').into(), scheme: place.scheme, store, prefix, runtime })
    }

    /// Writes an object.
    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let payload = PutPayload::from(bytes.to_vec());
        let put = self.run(async { self.store.put(&self.key(name), payload).await });
        put.map(drop).map_err(|error| self.failed("write", name, &error))
    }

    /// Writes a file as an object, and adds its bytes to `sent` as they arrive.
    pub fn put_file(&self, name: &str, path: &Path, sent: &AtomicU64) -> Result<(), StoreError> {
        let len = fs::metadata(path).map_err(StoreError::read(path))?.len();
        if len <= PART {
            self.put(name, &fs::read(path).map_err(StoreError::read(path))?)?;
            sent.fetch_add(len, Ordering::Relaxed);
            return Ok(());
        }
        let mut file = File::open(path).map_err(StoreError::read(path))?;
        self.run(async {
            let failed = |error| self.failed("write", name, &error);
            let mut upload = self.store.put_multipart(&self.key(name)).await.map_err(failed)?;
            let put = ranges(len).map(|range| {
                let bytes = range.end - range.start;
                let mut buffer = vec![0; bytes as usize];
                let read = file.read_exact(&mut buffer).map_err(StoreError::read(path));
                let put = read.map(|()| upload.put_part(PutPayload::from(buffer)));
                async move { put?.await.map(|()| bytes).map_err(failed) }
            });
            let parts = transfer(put, SLOW, |bytes| {
                sent.fetch_add(bytes, Ordering::Relaxed);
                Ok(())
            });
            let put = match parts.await {
                Ok(()) => upload.complete().await.map(drop).map_err(failed),
                error => error,
            };
            if put.is_err() {
                let _ = upload.abort().await; // parts would cost money
            }
            put
        })
    }

    /// The bytes of an object, if it is there.
    pub fn get(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let get = self.run(async { self.store.get(&self.key(name)).await?.bytes().await });
        match get {
            Ok(bytes) => Ok(Some(bytes.to_vec())),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed("read", name, &error)),
        }
    }

    /// Writes an object to a new file, and adds its bytes to `got` as they arrive. The file is on the disk afterwards.
    /// `left` holds what has not arrived yet, once the size is known: then the file is there, and the rest is written.
    pub fn get_file(
        &self,
        name: &str,
        path: &Path,
        left: &mut Option<Vec<Range<u64>>>,
        got: &AtomicU64,
    ) -> Result<(), StoreError> {
        let key = self.key(name);
        let failed = |error| match error {
            Error::NotFound { .. } => StoreError::Missing { url: self.url_of(name) },
            error => self.failed("read", name, &error),
        };
        self.run(async {
            let (file, left) = match left {
                Some(left) => (File::options().write(true).open(path), left),
                None => {
                    let len = self.store.head(&key).await.map_err(failed)?.size;
                    (File::create_new(path), left.insert(ranges(len).collect()))
                }
            };
            let file = file.map_err(StoreError::write(path))?;
            let get = left.clone().into_iter().map(|range| {
                let (key, failed) = (&key, &failed);
                async move {
                    let bytes = self.store.get_range(key, range.clone()).await.map_err(failed)?;
                    Ok((range, bytes))
                }
            });
            let parts = transfer(get, SLOW, |(range, bytes)| {
                file.write_all_at(&bytes, range.start).map_err(StoreError::write(path))?;
                got.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                left.retain(|other| *other != range);
                Ok(())
            });
            parts.await?;
            file.sync_all().map_err(StoreError::write(path))
        })
    }

    /// The object of this place's URL if there is one, or else all below it.
    pub fn list(&self) -> Result<Vec<Object>, StoreError> {
        let list = self.run(async {
            let is_object = match self.prefix.as_ref() {
                "" => None,
                _ => Some(self.store.head(&self.prefix).await),
            };
            match is_object {
                Some(Ok(object)) => Ok(vec![object]),
                None | Some(Err(Error::NotFound { .. })) => self.store.list(Some(&self.prefix)).try_collect().await,
                Some(Err(error)) => Err(error),
            }
        });
        let list: Vec<ObjectMeta> = list.map_err(|error| failed("read", self.url.clone(), self.scheme, &error))?;
        let last = self.url.rsplit('/').next().unwrap_or_default();
        let object = |meta: ObjectMeta| {
            let below: Vec<_> = meta.location.prefix_match(&self.prefix)?.collect();
            let names = [last].into_iter().chain(below.iter().map(|part| part.as_ref()));
            Some(Object {
                name: names.collect::<Vec<_>>().join("/"),
                key: meta.location.to_string(),
                bytes: meta.size,
                e_tag: meta.e_tag.as_deref().map(content).map(String::from),
                modified: meta.last_modified.to_rfc3339(),
            })
        };
        Ok(list.into_iter().filter_map(object).collect())
    }

    /// Writes the parts `left` of objects to files in `to`, which must be there, and adds their bytes to `got`. A part
    /// that has arrived is no longer `left`.
    pub fn get_parts(
        &self,
        objects: &[Object],
        left: &mut BTreeSet<Part>,
        to: &Path,
        got: &AtomicU64,
    ) -> Result<(), StoreError> {
        let get = left.clone().into_iter().map(|(number, at)| async move {
            let object = &objects[number];
            let url = || self.url_of(object.name.split_once('/').map_or("", |(_, below)| below));
            let failed = |error| match error {
                Error::NotFound { .. } => StoreError::Missing { url: url() },
                error => failed("read", url(), self.scheme, &error),
            };
            let key = Key::parse(&object.key).map_err(|error| failed(error.into()))?;
            let range = at..object.bytes.min(at + PART);
            let len = range.end - range.start;
            let answer = self.store.get_opts(&key, GetOptions::new().with_range(Some(range))).await.map_err(failed)?;
            let tags = [answer.meta.e_tag.as_deref().map(content), object.e_tag.as_deref()];
            let is_another = matches!(tags, [Some(now), Some(listed)] if now != listed);
            let size = answer.meta.size;
            let bytes = answer.bytes().await.map_err(failed)?;
            match is_another || size != object.bytes || bytes.len() as u64 != len {
                true => Err(StoreError::Changed { url: url() }),
                false => Ok((number, at, Vec::from(bytes))),
            }
        });
        let done = |(number, at, bytes): (usize, u64, Vec<u8>)| {
            let path = to.join(&objects[number].name);
            let file = OpenOptions::new().write(true).open(&path);
            file.and_then(|file| file.write_all_at(&bytes, at)).map_err(StoreError::write(&path))?;
            left.remove(&(number, at));
            got.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            Ok(())
        };
        self.run(transfer(get, SLOW, done))
    }

    /// Names of the folders directly in `under`.
    pub fn folders(&self, under: &str) -> Result<Vec<String>, StoreError> {
        let list = self.run(async { self.store.list_with_delimiter(Some(&self.key(under))).await });
        match list {
            Ok(list) => Ok(list.common_prefixes.iter().filter_map(|key| Some(key.filename()?.into())).collect()),
            Err(error) => Err(self.failed("list", under, &error)),
        }
    }

    /// Those of the objects that are there.
    pub fn having(&self, names: Vec<String>) -> Result<Vec<String>, StoreError> {
        let look = |name: String| async {
            match self.store.head(&self.key(&name)).await {
                Ok(_) => Ok(Some(name)),
                Err(Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(self.failed("read", &name, &error)),
            }
        };
        let found = self.run(async {
            stream::iter(names).map(look).buffered(REQUESTS_AT_ONCE).try_collect::<Vec<Option<String>>>().await
        });
        Ok(found?.into_iter().flatten().collect())
    }

    /// Removes an object, if it is there.
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        match self.run(async { self.store.delete(&self.key(name)).await }) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("remove", name, &error)),
        }
    }

    /// Runs a request on a thread of its own, because the caller may be a task of another runtime.
    fn run<T: Send>(&self, request: impl Future<Output = T> + Send) -> T {
        thread::scope(|scope| {
            let request = scope.spawn(|| self.runtime.block_on(request));
            request.join().expect("a request does not panic")
        })
    }

    fn key(&self, name: &str) -> Key {
        Key::from_iter(self.prefix.parts().chain(Key::from(name).parts()))
    }

    fn url_of(&self, name: &str) -> String {
        format!("{}/{name}", self.url).trim_end_matches('/').into()
    }

    fn failed(&self, what: &'static str, name: &str, error: &Error) -> StoreError {
        failed(what, self.url_of(name), self.scheme, error)
    }
}

/// An ETag without what some answers of a store add to it.
fn content(e_tag: &str) -> &str {
    e_tag.trim_start_matches("W/").trim_matches('"')
}

/// Bytes of a part of a file of `len` bytes.
fn part_of(len: u64) -> u64 {
    PART.max(len.div_ceil(MAX_PARTS))
}

/// The parts of a file of `len` bytes.
fn ranges(len: u64) -> impl Iterator<Item = Range<u64>> {
    let part = part_of(len);
    (0..len.div_ceil(part)).map(move |number| number * part..len.min((number + 1) * part))
}

/// Connects to a store, with credentials from the environment.
fn connect(place: Place) -> Result<Arc<dyn ObjectStore>, Error> {
    let Place { scheme, bucket, .. } = place;
    let backoff = BackoffConfig { init_backoff: Duration::from_millis(200), ..BackoffConfig::default() };
    let retry = RetryConfig { backoff, max_retries: REPEATS, retry_timeout: REPEATED };
    let timeout = format!("{} seconds", REQUEST.as_secs());
    Ok(match scheme {
        Scheme::S3 => {
            let timed = AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
            let builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
            // As other programs do: whoever gives an address without TLS means it.
            let is_plain = |key| builder.get_config_value(&key).is_some_and(|address| address.starts_with("http://"));
            let plain = is_plain(AmazonS3ConfigKey::Endpoint) || is_plain(AmazonS3ConfigKey::S3Endpoint);
            let builder = if plain { builder.with_allow_http(true) } else { builder };
            Arc::new(builder.with_config(timed, timeout).build()?)
        }
        Scheme::Google => {
            let timed = GoogleConfigKey::Client(ClientConfigKey::Timeout);
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_retry(retry);
            Arc::new(builder.with_config(timed, timeout).build()?)
        }
        Scheme::Azure => {
            let timed = AzureConfigKey::Client(ClientConfigKey::Timeout);
            let builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket).with_retry(retry);
            Arc::new(builder.with_config(timed, timeout).build()?)
        }
        Scheme::Local => Arc::new(LocalFileSystem::new()),
    })
}

/// An error with its cause in one line, and what helps against the usual ones.
fn failed(what: &'static str, url: String, scheme: Scheme, error: &Error) -> StoreError {
    let text = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let has = |part: &str| text.contains(part);
    let credentials = match scheme {
        Scheme::S3 => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        Scheme::Google => "GOOGLE_APPLICATION_CREDENTIALS",
        Scheme::Azure => "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        Scheme::Local => "",
    };
    let remedy = match error {
        _ if scheme == Scheme::Local => "check the folder and its permissions".into(),
        // The address of a cloud's own machines, which is asked if no credentials are given.
        _ if has("169.254.") || has("metadata.google") => {
            format!("no credentials were found: set {credentials}")
        }
        Error::NotFound { .. } => "check the bucket's name, or create the bucket".into(),
        Error::Unauthenticated { .. } | Error::PermissionDenied { .. } => {
            let may = if what == "remove" { "remove objects" } else { "read and write" };
            format!("check {credentials}, and that they may {may} there")
        }
        _ if has("error sending request") && scheme == Scheme::S3 => {
            "check the network, AWS_ENDPOINT_URL and AWS_REGION".into()
        }
        _ => String::new(),
    };
    let lasting = matches!(error, Error::Unauthenticated { .. } | Error::PermissionDenied { .. });
    StoreError::Failed { what, url, why: answer(&text).unwrap_or(text), remedy, lasting }
}

/// What a server has said in XML, as S3 and Azure do: `The specified bucket does not exist (NoSuchBucket)`.
fn answer(error: &str) -> Option<String> {
    let of =
        |tag: &str| error.split_once(&format!("<{tag}>"))?.1.split_once(&format!("</{tag}>")).map(|(text, _)| text);
    Some(format!("{} ({})", of("Message")?.trim_end_matches('.'), of("Code")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_in_one_line_what_the_server_said_and_what_helps() {
        let of = |text: &str| Error::NotFound { path: "a".into(), source: text.into() };
        let xml = "404:\n<Error><Code>NoSuchBucket</Code>\n<Message>It does not exist.</Message></Error>";
        let error = failed("write", "s3://b/a".into(), Scheme::S3, &of(xml)).to_string();
        let remedy = "check the bucket's name, or create the bucket";
        assert_eq!(error, format!("cannot write s3://b/a: It does not exist (NoSuchBucket): {remedy}"));
        let error = failed("write", "s3://b/a".into(), Scheme::S3, &of("PUT http://169.254.169.254/x failed"));
        assert!(error.to_string().ends_with("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"), "{error}");
    }
}
