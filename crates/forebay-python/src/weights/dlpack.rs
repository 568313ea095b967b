//! DLPack: how arrays of one library become arrays of another without a copy.
//!
//! A capsule holds a structure in C with address, type and shape, and a function that lets go of the memory. Whoever takes it renames the
//! capsule and calls that function at the end; a capsule that nobody took calls it itself. Types that DLPack has no old name for (8-bit floats,
//! two values in a byte) are shown as bytes, and the caller gives them their type.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use forebay_core::safetensors::Dtype;
use forebay_io::device::DeviceBuf;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::fork::ForkGuard;

/// `kDLCUDA`.
pub(super) const DEVICE_CUDA: i32 = 2;

const NAME: &CStr = c"dltensor";
const NAME_VERSIONED: &CStr = c"dltensor_versioned";
/// The version whose layout is given out.
const VERSION: [u32; 2] = [1, 0];

/// `DLTensor`.
#[repr(C)]
struct RawTensor {
    data: *mut c_void,
    device_kind: i32,
    device_ordinal: i32,
    dims: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: RawTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: RawTensor,
}

/// What is shown, and what keeps it there.
pub(super) struct Exported {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    pub(super) len: u64,
    pub(super) address: u64,
    pub(super) ordinal: u32,
    /// Not freed in a forked child, where the driver is dead.
    pub(super) hold: ForkGuard<Arc<DeviceBuf>>,
}

/// What a capsule owns besides its structure: shape and strides as C reads them, and the memory.
struct Context {
    shape: Vec<i64>,
    strides: Vec<i64>,
    _hold: ForkGuard<Arc<DeviceBuf>>,
}

/// The capsule of a tensor.
pub(super) fn capsule(py: Python<'_>, exported: Exported, is_versioned: bool) -> PyResult<Bound<'_, PyAny>> {
    let (code, bits) = type_of(exported.dtype).unwrap_or((CODE_UINT, 8));
    let shape: Vec<i64> = match type_of(exported.dtype) {
        Some(_) => exported.shape.iter().map(|side| *side as i64).collect(),
        None => vec![exported.len as i64],
    };
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim].max(1);
    }
    let mut context = Box::new(Context {
        shape,
        strides,
        _hold: exported.hold,
    });
    let tensor = RawTensor {
        data: exported.address as *mut c_void,
        device_kind: DEVICE_CUDA,
        device_ordinal: exported.ordinal as i32,
        dims: context.shape.len() as i32,
        code,
        bits,
        lanes: 1,
        shape: context.shape.as_mut_ptr(),
        strides: context.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let context: *mut c_void = Box::into_raw(context).cast();
    let (pointer, name, destructor): (*mut c_void, &CStr, ffi::PyCapsule_Destructor) = if is_versioned {
        let managed = Box::new(ManagedVersioned {
            version: VERSION,
            context,
            deleter: Some(delete_versioned),
            flags: 0,
            tensor,
        });
        (Box::into_raw(managed).cast(), NAME_VERSIONED, destroy_versioned)
    } else {
        let managed = Box::new(Managed {
            tensor,
            context,
            deleter: Some(delete),
        });
        (Box::into_raw(managed).cast(), NAME, destroy)
    };
    // SAFETY: the pointer is not null, the name is a constant, and the destructor fits what the pointer points at.
    let capsule = unsafe { ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destructor)) };
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

/// Let go, as whoever took the tensor does; from any thread.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: DLPack calls this once, with the pointer that the capsule gave out, which came from a box; the context too.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Context>()));
    }
}

/// The same for the newer structure.
unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: as in `delete`.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Context>()));
    }
}

/// A capsule that goes: when nobody took the tensor, its name is still the first one.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: called by Python with a capsule made above; a name that fits says that its pointer is ours to free.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}

/// The same for the newer structure.
unsafe extern "C" fn destroy_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as in `destroy`.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME_VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, NAME_VERSIONED.as_ptr()).cast());
        }
    }
}

const CODE_INT: u8 = 0;
const CODE_UINT: u8 = 1;
const CODE_FLOAT: u8 = 2;
const CODE_BFLOAT: u8 = 4;
const CODE_COMPLEX: u8 = 5;
const CODE_BOOL: u8 = 6;

/// Code and bits of a type that every version of DLPack has.
fn type_of(dtype: Dtype) -> Option<(u8, u8)> {
    let code = match dtype {
        Dtype::Bool => CODE_BOOL,
        Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => CODE_INT,
        Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => CODE_UINT,
        Dtype::F16 | Dtype::F32 | Dtype::F64 => CODE_FLOAT,
        Dtype::Bf16 => CODE_BFLOAT,
        Dtype::C64 => CODE_COMPLEX,
        _ => return None,
    };
    Some((code, dtype.bits() as u8))
}
