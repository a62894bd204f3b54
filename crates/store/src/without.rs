//! The engine of a build without stores: none can be opened.

use crate::fetch::Part;
use crate::{Object, StoreError};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicU64;

pub(crate) enum Objects {}

impl Objects {
    pub fn open(url: &str) -> Result<Self, StoreError> {
        Err(StoreError::NotBuilt { url: url.into() })
    }

    pub fn put(&self, _: &str, _: &[u8]) -> Result<(), StoreError> {
        match *self {}
    }

    pub fn put_file(&self, _: &str, _: &Path, _: &AtomicU64) -> Result<(), StoreError> {
        match *self {}
    }

    pub fn get(&self, _: &str) -> Result<Option<Vec<u8>>, StoreError> {
        match *self {}
    }

    pub fn get_file(
        &self,
        _: &str,
        _: &Path,
        _: &mut Option<Vec<Range<u64>>>,
        _: &AtomicU64,
    ) -> Result<(), StoreError> {
        match *self {}
    }

    pub fn list(&self) -> Result<Vec<Object>, StoreError> {
        match *self {}
    }

    pub fn get_parts(&self, _: &[Object], _: &mut BTreeSet<Part>, _: &Path, _: &AtomicU64) -> Result<(), StoreError> {
        match *self {}
    }

    pub fn folders(&self, _: &str) -> Result<Vec<String>, StoreError> {
        match *self {}
    }

    pub fn having(&self, _: Vec<String>) -> Result<Vec<String>, StoreError> {
        match *self {}
    }

    pub fn remove(&self, _: &str) -> Result<(), StoreError> {
        match *self {}
    }
}
