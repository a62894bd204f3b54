use moe::ExpertParallel;

/// The ranks that compute a model's sequences together; by default none but this one.
#[derive(Clone, Default)]
pub struct Parallel {
    /// Those that have the experts together.
    pub experts: Option<ExpertParallel>,
}
