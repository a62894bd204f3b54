//! A run's metrics as one HTML page.
