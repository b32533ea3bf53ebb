#!/bin/bash
# The first process of the guest: gives it what a node has, runs the command, powers off.
# usage: init.sh MODULES FAKETPU COMMAND...   (MODULES: the folder of this kernel's modules)
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
modules=$1 faketpu=$2; shift 2
exec </dev/null >/dev/ttyS0 2>&1
mount --make-rshared /  # as systemd does: what is mounted later shows in containers that ask for it
mount -t tmpfs tmpfs /run
mkdir -p /dev/pts /dev/shm; mount -t devpts devpts /dev/pts; mount -t tmpfs tmpfs /dev/shm
mount -t cgroup2 none /sys/fs/cgroup
mkdir -p "/lib/modules/$(uname -r)"; mount --bind "$modules" "/lib/modules/$(uname -r)"
# A disk of its own, so that the ledger's folder is on a real file system with real flushes.
for folder in /var/lib/kubelet /var/lib/holdfast; do rm -rf "$folder"; mkdir -p "$folder"; done
modprobe virtio_blk && modprobe ext4 && mount -t ext4 /dev/vda /var/lib/holdfast || mount -t tmpfs tmpfs /var/lib/holdfast
mount -t tmpfs tmpfs /var/lib/kubelet
busybox ip link set lo up
modprobe vfio-pci; modprobe vfio_iommu_type1; modprobe uio_pci_generic; modprobe pci-pf-stub
insmod "$faketpu"
"$@"
echo "VM ENDED $?"
sync; echo o > /proc/sysrq-trigger
while :; do :; done  # the first process must not end; the power is gone in a moment
