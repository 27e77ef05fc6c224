// Command sanity runs csi-sanity against a node's driver that has no controller.
//
// Most of csi-sanity's specs of a node first have a controller make a volume. So this program stands between csi-sanity
// and the driver: it answers for a controller, whose volumes are image files of the node's pool, and passes all calls to
// the node on. The kubelet's paths have a form that csi-sanity does not know; each of its targets is put where the
// kubelet would have it, in a directory of a Pod. The driver mounts what the API knows, so all volumes are the one
// PersistentVolume of tests/conformance/csi.yaml: csi-sanity has one at a time.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// The PersistentVolume's name and handle, and its image file.
const (
	volumeName = "sanity"
	imageFile  = "sanity.img"
)

// The smallest that xfs takes, and a size that it can have next.
const (
	size       = 320 << 20
	expandedTo = 384 << 20
)

// pod is one that has the volume.
type pod struct {
	name string
	// Its directory of the kubelet's.
	directory string
}

// paths knows where csi-sanity's targets are.
type paths struct {
	mountDir string
	pods     map[string]pod
}

// pod is the one whose target this is, if csi-sanity did not make it up.
func (p paths) pod(path string) (pod, bool) {
	if filepath.Dir(path) != p.mountDir {
		return pod{}, false
	}
	found, known := p.pods[filepath.Base(path)]
	return found, known
}

// target is the path for the driver; one that csi-sanity made up stays as it is.
func (p paths) target(path string) string {
	if pod, known := p.pod(path); known {
		return filepath.Join(pod.directory, "volumes", "kubernetes.io~csi", volumeName, "mount")
	}
	return path
}

// controller makes volumes.
type controller struct {
	csi.UnimplementedControllerServer
	pool string
}

func (c controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	can := func(kind csi.ControllerServiceCapability_RPC_Type) *csi.ControllerServiceCapability {
		rpc := &csi.ControllerServiceCapability_RPC{Type: kind}
		return &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc}}
	}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{
		can(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME),
		can(csi.ControllerServiceCapability_RPC_EXPAND_VOLUME),
	}}, nil
}

// resize makes the image file, or makes it larger.
func (c controller) resize(size int64) error {
	// The mounter makes its pool when it first needs it.
	if err := os.MkdirAll(c.pool, 0o700); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	file, err := os.OpenFile(filepath.Join(c.pool, imageFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

func (c controller) CreateVolume(_ context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if err := c.resize(size); err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId:      request.GetName(),
		CapacityBytes: size,
		VolumeContext: map[string]string{"client": "local", "source": imageFile, "fs-type": "xfs"},
	}}, nil
}

func (c controller) DeleteVolume(context.Context, *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	err := os.Remove(filepath.Join(c.pool, imageFile))
	if err != nil && !os.IsNotExist(err) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.DeleteVolumeResponse{}, nil
}

func (c controller) ControllerExpandVolume(_ context.Context, request *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	size := request.GetCapacityRange().GetRequiredBytes()
	if err := c.resize(size); err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: true}, nil
}

// identity is the driver's, with a controller.
type identity struct {
	csi.UnimplementedIdentityServer
	driver csi.IdentityClient
}

func (i identity) GetPluginInfo(ctx context.Context, request *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return i.driver.GetPluginInfo(ctx, request)
}

func (i identity) Probe(ctx context.Context, request *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return i.driver.Probe(ctx, request)
}

func (i identity) GetPluginCapabilities(ctx context.Context, request *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	response, err := i.driver.GetPluginCapabilities(ctx, request)
	if err == nil {
		service := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
		can := &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: service}}
		response.Capabilities = append(response.Capabilities, can)
	}
	return response, err
}

// node is the driver's.
type node struct {
	csi.UnimplementedNodeServer
	driver    csi.NodeClient
	paths     paths
	namespace string
}

func (n node) NodeGetCapabilities(ctx context.Context, request *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return n.driver.NodeGetCapabilities(ctx, request)
}

func (n node) NodeGetInfo(ctx context.Context, request *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return n.driver.NodeGetInfo(ctx, request)
}

func (n node) NodePublishVolume(ctx context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if pod, known := n.paths.pod(request.TargetPath); known && request.VolumeId != "" {
		target := n.paths.target(request.TargetPath)
		request.TargetPath = target
		request.VolumeId = volumeName
		// The kubelet adds these.
		if request.VolumeContext != nil {
			request.VolumeContext["csi.storage.k8s.io/ephemeral"] = "false"
			request.VolumeContext["csi.storage.k8s.io/pod.name"] = pod.name
			request.VolumeContext["csi.storage.k8s.io/pod.namespace"] = n.namespace
		}
		// The kubelet makes the parent, and nothing below.
		if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return n.driver.NodePublishVolume(ctx, request)
}

func (n node) NodeUnpublishVolume(ctx context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	request.TargetPath = n.paths.target(request.TargetPath)
	return n.driver.NodeUnpublishVolume(ctx, request)
}

func (n node) NodeGetVolumeStats(ctx context.Context, request *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	request.VolumePath = n.paths.target(request.VolumePath)
	return n.driver.NodeGetVolumeStats(ctx, request)
}

func (n node) NodeExpandVolume(ctx context.Context, request *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	request.VolumePath = n.paths.target(request.VolumePath)
	return n.driver.NodeExpandVolume(ctx, request)
}

func (n node) NodeGetVolumeHealth(ctx context.Context, request *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	return n.driver.NodeGetVolumeHealth(ctx, request)
}

func (n node) NodeGetStorageHealth(ctx context.Context, request *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	return n.driver.NodeGetStorageHealth(ctx, request)
}

// testing is what sanity.Test wants of a test.
type testing struct{ failed bool }

func (t *testing) Fail() { t.failed = true }

func main() {
	driver := flag.String("driver", "", "socket of the driver")
	pool := flag.String("pool", "", "the pool of the node")
	namespace := flag.String("namespace", "", "where the Pods are")
	directory := flag.String("pod", "", "the kubelet's directory of Pod sanity on the node")
	other := flag.String("other-pod", "", "the same of Pod sanity-other")
	flag.Parse()
	folder, err := os.MkdirTemp("", "sanity")
	if err != nil {
		log.Fatal(err)
	}
	config := sanity.NewTestConfig()
	config.Address = filepath.Join(folder, "csi.sock")
	config.TargetPath = filepath.Join(folder, "mount")
	config.StagingPath = filepath.Join(folder, "staging")
	config.TestVolumeSize = size
	config.TestVolumeExpandSize = expandedTo
	paths := paths{config.TargetPath, map[string]pod{
		"target":       {"sanity", *directory},
		"other_target": {"sanity-other", *other},
	}}
	config.CheckPath = func(path string) (sanity.PathKind, error) {
		info, err := os.Stat(paths.target(path))
		switch {
		case os.IsNotExist(err):
			return sanity.PathIsNotFound, nil
		case err != nil:
			return "", err
		case info.IsDir():
			return sanity.PathIsDir, nil
		default:
			return sanity.PathIsOther, nil
		}
	}

	connection, err := grpc.NewClient("unix:"+*driver, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("unix", config.Address)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, identity{driver: csi.NewIdentityClient(connection)})
	csi.RegisterControllerServer(server, controller{pool: *pool})
	csi.RegisterNodeServer(server, node{driver: csi.NewNodeClient(connection), paths: paths, namespace: *namespace})
	go func() {
		if err := server.Serve(listener); err != nil {
			log.Fatal(err)
		}
	}()
	t := testing{}
	sanity.Test(&t, config)
	server.Stop()
	os.RemoveAll(folder)
	if t.failed {
		os.Exit(1)
	}
}
