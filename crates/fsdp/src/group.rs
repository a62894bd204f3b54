use crate::call::{Call, Role};
use crate::unit::{AnyUnit, Bound, Units};
use crate::{FsdpError, Layout, ParamLayout, Wrap};
use burn::tensor::{DType, Device, Gradients, Tensor};
use std::any::Any;

/// The modules that are kept, gathered and freed together: one, or more by [`Wrap::Size`].
pub(crate) struct Group {
    members: Vec<Box<dyn AnyUnit>>,
    /// Number of each member's parameters.
    counts: Vec<usize>,
}

/// A group's modules with values.
pub(crate) struct BoundGroup(Vec<Box<dyn Bound>>);

/// Groups, their calls, and where each unit went: its group and its number there.
pub(crate) struct Wrapped<B> {
    pub groups: Vec<Group>,
    pub calls: Vec<Call<B>>,
    pub places: Vec<(usize, usize)>,
}

/// Puts units that follow each other into groups, and calls of one group that follow each other into one.
pub(crate) fn wrap<B>(units: Units<B>, wrap: Wrap) -> Result<Wrapped<B>, FsdpError> {
    check_roles(&units.roles)?;
    let (mut groups, mut places) = (Vec::<Group>::new(), vec![]);
    let min_params = match wrap {
        Wrap::Block => 0,
        Wrap::Size(min_params) => min_params,
    };
    let mut params = usize::MAX; // of the last group; there is none yet, so the first unit begins one
    for unit in units.units {
        if params >= min_params {
            groups.push(Group { members: vec![], counts: vec![] });
            params = 0;
        }
        let last = groups.len() - 1;
        let shapes = unit.params();
        params += shapes.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum::<usize>();
        groups[last].counts.push(shapes.len());
        groups[last].members.push(unit);
        places.push((last, groups[last].members.len() - 1));
    }
    let mut calls = Vec::<Call<B>>::new();
    for call in units.calls {
        let (group, member) = places[call.unit];
        let call = call.moved(group, member);
        match calls.last_mut() {
            Some(before) if before.unit == group && matches!(wrap, Wrap::Size(_)) => before.and_then(call),
            _ => calls.push(call),
        }
    }
    match (0..groups.len()).find(|group| calls.iter().all(|call| call.unit != *group)) {
        Some(unused) => Err(FsdpError::Calls(format!("none is of the unit {}", groups[unused].name()))),
        None => Ok(Wrapped { groups, calls, places }),
    }
}

fn check_roles(roles: &[Role]) -> Result<(), FsdpError> {
    match roles {
        [Role::First, middle @ .., Role::Last] if middle.iter().all(|role| *role == Role::Middle) => Ok(()),
        _ => Err(FsdpError::Calls(format!("the calls are {roles:?}"))),
    }
}

impl Group {
    /// Its only member's name, or the first and the last one's.
    pub fn name(&self) -> String {
        match self.members.as_slice() {
            [one] => one.name().into(),
            [first, .., last] => format!("{} to {}", first.name(), last.name()),
            [] => String::new(),
        }
    }

    pub fn layout(&self, shards: usize) -> Layout {
        let named = self.members.iter().flat_map(|member| {
            member.params().into_iter().map(|(name, shape)| (format!("{}.{name}", member.name()), shape))
        });
        Layout::new(named, shards)
    }

    /// Where a member's parameter lies.
    pub fn param<'a>(&self, layout: &'a Layout, member: usize, path: &str) -> &'a ParamLayout {
        let first = self.counts[..member].iter().sum();
        let name = format!("{}.{path}", self.members[member].name());
        let mut params = layout.params()[first..][..self.counts[member]].iter();
        params.find(|param| param.name == name).unwrap_or_else(|| panic!("there is no parameter {name}"))
    }

    /// The parameters' values in one buffer; the modules give them up.
    pub fn take_values(&mut self, layout: &Layout, device: &Device) -> Tensor<1> {
        let parts = self.members.iter_mut().flat_map(|member| member.take_values()).collect();
        concatenate(layout, parts, DType::F32, device)
    }

    /// The modules with their parameters being views of `flat`; `tracked`: each the leaf of a graph.
    pub fn bind(&self, layout: &Layout, flat: &Tensor<1>, tracked: bool) -> BoundGroup {
        let mut rest = layout.params();
        let mut bound = vec![];
        for (member, count) in self.members.iter().zip(&self.counts) {
            let (places, others) = rest.split_at(*count);
            rest = others;
            bound.push(member.bind(places, flat, tracked));
        }
        BoundGroup(bound)
    }
}

impl BoundGroup {
    pub fn module(&self, member: usize) -> &dyn Any {
        self.0[member].module()
    }

    /// The parameters' gradients in one buffer; zeros where there is none.
    pub fn take_gradients(
        &self,
        layout: &Layout,
        gradients: &mut Gradients,
        dtype: DType,
        device: &Device,
    ) -> Tensor<1> {
        let parts = self.0.iter().flat_map(|member| member.take_gradients(gradients)).collect();
        concatenate(layout, parts, dtype, device)
    }
}

/// One buffer from flat parts in the order of visits, zeros where a part is missing and in the padding.
fn concatenate(layout: &Layout, mut parts: Vec<Option<Tensor<1>>>, dtype: DType, device: &Device) -> Tensor<1> {
    let zeros = |len: usize| Tensor::zeros([len], (device, dtype));
    let (mut pieces, mut end) = (vec![], 0);
    for i in layout.by_offset() {
        let param = &layout.params()[*i];
        if let Some(part) = parts[*i].take() {
            if param.offset > end {
                pieces.push(zeros(param.offset - end));
            }
            pieces.push(part.cast(dtype));
            end = param.offset + param.len();
        }
    }
    if layout.padded_len() > end {
        pieces.push(zeros(layout.padded_len() - end));
    }
    Tensor::cat(pieces, 0)
}
