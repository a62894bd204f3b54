//! Functions of the driver API that are there but refused by name.
//!
//! A program may look all functions up before it calls the first, and give up where one is missing: Dr.Jit does.

use crate::abi::CUresult;
use crate::call::{enter, unsupported};

/// Defines each function to answer that it is not supported, whatever its arguments are: the caller takes them back.
macro_rules! refused {
    ($($what:literal: $($name:ident)*;)*) => {$($(
        #[doc = concat!("`", stringify!($name), "` of the driver API, which is refused: ", $what, ".")]
        ///
        /// # Safety
        /// None: it reads no argument.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() -> CUresult {
            enter(stringify!($name), false, || unsupported(concat!(stringify!($name), " (", $what, ")")))
        }
    )*)*};
}

refused! {
    "arrays":
        cuArray3DCreate cuArray3DCreate_v2 cuArray3DGetDescriptor cuArray3DGetDescriptor_v2 cuArrayCreate
        cuArrayCreate_v2 cuArrayDestroy cuArrayGetDescriptor cuArrayGetDescriptor_v2 cuArrayGetMemoryRequirements
        cuArrayGetPlane cuArrayGetSparseProperties cuMemMapArrayAsync cuMemcpyAtoA cuMemcpyAtoA_v2 cuMemcpyAtoD
        cuMemcpyAtoD_v2 cuMemcpyAtoH cuMemcpyAtoHAsync cuMemcpyAtoHAsync_v2 cuMemcpyAtoH_v2 cuMemcpyDtoA
        cuMemcpyDtoA_v2 cuMemcpyHtoA cuMemcpyHtoAAsync cuMemcpyHtoAAsync_v2 cuMemcpyHtoA_v2 cuMipmappedArrayCreate
        cuMipmappedArrayDestroy cuMipmappedArrayGetLevel cuMipmappedArrayGetMemoryRequirements
        cuMipmappedArrayGetSparseProperties;
    "textures and surfaces":
        cuParamSetTexRef cuSurfObjectCreate cuSurfObjectDestroy cuSurfObjectGetResourceDesc cuSurfRefGetArray
        cuSurfRefSetArray cuTexObjectCreate cuTexObjectDestroy cuTexObjectGetResourceDesc
        cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc cuTexRefCreate cuTexRefDestroy cuTexRefGetAddress
        cuTexRefGetAddressMode cuTexRefGetAddress_v2 cuTexRefGetArray cuTexRefGetBorderColor cuTexRefGetFilterMode
        cuTexRefGetFlags cuTexRefGetFormat cuTexRefGetMaxAnisotropy cuTexRefGetMipmapFilterMode
        cuTexRefGetMipmapLevelBias cuTexRefGetMipmapLevelClamp cuTexRefGetMipmappedArray cuTexRefSetAddress
        cuTexRefSetAddress2D cuTexRefSetAddress2D_v2 cuTexRefSetAddress2D_v3 cuTexRefSetAddressMode
        cuTexRefSetAddress_v2 cuTexRefSetArray cuTexRefSetBorderColor cuTexRefSetFilterMode cuTexRefSetFlags
        cuTexRefSetFormat cuTexRefSetMaxAnisotropy cuTexRefSetMipmapFilterMode cuTexRefSetMipmapLevelBias
        cuTexRefSetMipmapLevelClamp cuTexRefSetMipmappedArray;
    "memory shared between processes":
        cuIpcCloseMemHandle cuIpcGetEventHandle cuIpcGetMemHandle cuIpcOpenEventHandle cuIpcOpenMemHandle
        cuIpcOpenMemHandle_v2 cuMemGetHandleForAddressRange cuMemPoolExportPointer cuMemPoolExportToShareableHandle
        cuMemPoolImportFromShareableHandle cuMemPoolImportPointer;
    "memory and semaphores of other programs":
        cuDestroyExternalMemory cuDestroyExternalSemaphore cuDeviceGetNvSciSyncAttributes
        cuExternalMemoryGetMappedBuffer cuExternalMemoryGetMappedMipmappedArray cuGraphicsMapResources
        cuGraphicsResourceGetMappedMipmappedArray cuGraphicsResourceGetMappedPointer
        cuGraphicsResourceGetMappedPointer_v2 cuGraphicsResourceSetMapFlags cuGraphicsResourceSetMapFlags_v2
        cuGraphicsSubResourceGetMappedArray cuGraphicsUnmapResources cuGraphicsUnregisterResource
        cuImportExternalMemory cuImportExternalSemaphore cuSignalExternalSemaphoresAsync
        cuWaitExternalSemaphoresAsync;
    "graphics":
        cuEGLStreamConsumerConnect cuEGLStreamProducerConnect cuGLCtxCreate_v2 cuGLGetDevices_v2 cuGLInit
        cuGraphicsEGLRegisterImage cuGraphicsGLRegisterBuffer cuGraphicsGLRegisterImage
        cuGraphicsVDPAURegisterOutputSurface cuGraphicsVDPAURegisterVideoSurface cuVDPAUCtxCreate_v2 cuVDPAUGetDevice;
    "profiles":
        cuProfilerInitialize;
    "objects for several cards":
        cuLaunchCooperativeKernelMultiDevice cuMulticastAddDevice cuMulticastBindAddr cuMulticastBindMem
        cuMulticastBindAddr_v2 cuMulticastBindMem_v2 cuMulticastCreate cuMulticastGetGranularity cuMulticastUnbind;
    "green contexts":
        cuCtxFromGreenCtx cuCtxGetDevResource cuDevResourceGenerateDesc cuDevSmResourceSplit
        cuDevSmResourceSplitByCount cuDeviceGetDevResource cuGreenCtxCreate cuGreenCtxDestroy cuGreenCtxGetDevResource
        cuGreenCtxGetId cuGreenCtxRecordEvent cuGreenCtxStreamCreate cuGreenCtxWaitEvent cuStreamGetDevResource
        cuStreamGetGreenCtx;
    "graphs":
        cuDeviceGetGraphMemAttribute cuDeviceGraphMemTrim cuDeviceSetGraphMemAttribute cuGraphAddBatchMemOpNode
        cuGraphAddChildGraphNode cuGraphAddExternalSemaphoresSignalNode cuGraphAddExternalSemaphoresWaitNode
        cuGraphAddMemAllocNode cuGraphAddMemFreeNode cuGraphBatchMemOpNodeGetParams cuGraphBatchMemOpNodeSetParams
        cuGraphChildGraphNodeGetGraph cuGraphConditionalHandleCreate cuGraphExecBatchMemOpNodeSetParams
        cuGraphExecChildGraphNodeSetParams cuGraphExecExternalSemaphoresSignalNodeSetParams
        cuGraphExecExternalSemaphoresWaitNodeSetParams cuGraphExecGetFlags cuGraphExecGetId cuGraphExecUpdate
        cuGraphExternalSemaphoresSignalNodeGetParams cuGraphExternalSemaphoresSignalNodeSetParams
        cuGraphExternalSemaphoresWaitNodeGetParams cuGraphExternalSemaphoresWaitNodeSetParams cuGraphGetId
        cuGraphKernelNodeCopyAttributes cuGraphKernelNodeGetAttribute cuGraphKernelNodeSetAttribute
        cuGraphMemAllocNodeGetParams cuGraphMemFreeNodeGetParams cuGraphMemcpyNodeGetParams
        cuGraphNodeGetContainingGraph cuGraphNodeGetEnabled cuGraphNodeGetLocalId cuGraphNodeGetToolsId
        cuGraphNodeSetEnabled cuGraphReleaseUserObject cuGraphRetainUserObject
        cuUserObjectRelease cuUserObjectRetain;
    "launches before CUDA 4":
        cuCtxAttach cuFuncSetSharedSize cuLaunch cuLaunchGrid cuLaunchGridAsync cuParamSetSize cuParamSetf cuParamSeti
        cuParamSetv;
    "checkpoints, core dumps and logs":
        cuCheckpointProcessCheckpoint cuCheckpointProcessGetRestoreThreadId cuCheckpointProcessGetState
        cuCheckpointProcessLock cuCheckpointProcessRestore cuCheckpointProcessUnlock cuCoredumpGetAttribute
        cuCoredumpGetAttributeGlobal cuCoredumpSetAttribute cuCoredumpSetAttributeGlobal cuLogsCurrent
        cuLogsDumpToFile cuLogsDumpToMemory cuLogsRegisterCallback cuLogsUnregisterCallback;
    "32-bit addresses, which the form with _v2 does not have":
        cuDeviceTotalMem cuMemAlloc cuMemAllocHost cuMemAllocPitch cuMemFree cuMemGetAddressRange cuMemGetInfo
        cuMemHostGetDevicePointer cuMemcpy2D cuMemcpy2DAsync cuMemcpy2DUnaligned cuMemcpy3D cuMemcpy3DAsync
        cuMemcpyDtoD cuMemcpyDtoDAsync cuMemcpyDtoH cuMemcpyDtoHAsync cuMemcpyHtoD cuMemcpyHtoDAsync cuMemsetD16
        cuMemsetD2D16 cuMemsetD2D32 cuMemsetD2D8 cuMemsetD32 cuMemsetD8 cuModuleGetGlobal;
    "other functions that no client has needed":
        cuCtxGetExecAffinity cuDeviceGetHostAtomicCapabilities cuDeviceGetP2PAtomicCapabilities
        cuDeviceRegisterAsyncNotification cuDeviceUnregisterAsyncNotification cuLibraryGetManaged
        cuLibraryGetUnifiedFunction cuMemBatchDecompressAsync cuMemDiscardAndPrefetchBatchAsync cuMemDiscardBatchAsync
        cuMemGetDefaultMemPool cuMemGetMemPool cuMemPrefetchBatchAsync cuMemRangeGetAttribute cuMemRangeGetAttributes
        cuMemSetMemPool cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_v2 cuMemcpyBatchAsync cuMemcpyBatchAsync_v2
        cuStreamBatchMemOp cuStreamBatchMemOp_v2;
}
