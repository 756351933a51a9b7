/* The driver's C interface as in docs/spec/dcmi.md#functions: structures in natural alignment, and functions.
 *
 * The fake library includes this file, and test_abi.py compares its sizes and offsets with the plugin's structures.
 */
#ifndef DCMI_ABI_H
#define DCMI_ABI_H

#include <stdint.h>

enum {
    DCMI_OK = 0,
    DCMI_INVALID_PARAMETER = -8001,
    DCMI_NOT_PERMITTED = -8002,
    DCMI_INTERNAL = -8005,
    DCMI_TIMED_OUT = -8006,
    DCMI_INVALID_DEVICE = -8007,
    DCMI_NO_DEVICE = -8008,
    DCMI_NOT_READY = -8012,
    DCMI_OCCUPIED = -8020,
    DCMI_UNSUPPORTED = -8255,
};

enum { DCMI_ROCE_PORT = 1 };
enum { DCMI_UTIL_AI_CORE = 2, DCMI_UTIL_HBM = 6, DCMI_UTIL_VECTOR = 12, DCMI_UTIL_OVERALL = 13 };
enum { DCMI_FREQUENCY_AI_CORE = 7 };
enum { DCMI_VDIE = 1 };
enum { DCMI_IP_V4 = 0, DCMI_IP_V6 = 1 };
enum { DCMI_CMD_CHIP = 12, DCMI_SUB_SUPER_POD = 1 };
enum { DCMI_CMD_VDEV = 52, DCMI_SUB_VDEV_SINGLE = 0, DCMI_SUB_VDEV_TOTAL = 1, DCMI_SUB_VDEV_FREE = 2 };
enum { DCMI_FAULT_EVENT = 0 };
enum { DCMI_RECOVER = 0, DCMI_OCCUR = 1, DCMI_ONCE = 2 };
enum { DCMI_MAX_VDEV = 32, DCMI_MAX_DEVICES = 4 };

struct chip_info {
    char chip_type[32];
    char chip_name[32];
    char chip_ver[32];
    uint32_t aicore_cnt;
};

struct chip_info_v2 {
    char chip_type[32];
    char chip_name[32];
    char chip_ver[32];
    uint32_t aicore_cnt;
    char npu_name[32];
};

struct board_info {
    uint32_t board_id, pcb_id, bom_id, slot_id;
};

struct hbm_info {
    uint64_t memory_size;
    uint32_t freq;
    uint64_t memory_usage;
    int32_t temp;
    uint32_t bandwidth_util_rate;
};

struct die_id {
    uint32_t soc_die[5];
};

struct ip_addr {
    union {
        uint8_t ip6[16];
        uint8_t ip4[4];
    } u_addr;
    int32_t ip_type;
};

struct pcie_info {
    uint32_t venderid, subvenderid, deviceid, subdeviceid;
    int32_t domain;
    uint32_t bdf_busid, bdf_deviceid, bdf_funcid;
    uint8_t reserve[32];
};

struct spod_info {
    uint32_t sdid, scale_type, super_pod_id, server_id, chassis_id, super_pod_type;
    uint32_t reserve[6];
};

struct base_resource {
    uint64_t token, token_max, task_timeout;
    uint32_t vfg_id;
    uint8_t vip_mode;
    uint8_t reserved[31];
};

struct computing_resource {
    float aic, aiv;
    uint16_t dsa, rtsq, acsq, cdqm, c_core, ffts, sdma, pcie_dma;
    uint64_t memory_size;
    uint32_t event_id, notify_id, stream_id, model_id;
    uint16_t topic_schedule_aicpu, host_ctrl_cpu, host_aicpu, device_aicpu, topic_ctrl_cpu_slot;
    uint32_t vdev_aicore_utilization;
    uint64_t vdev_memory_total, vdev_memory_free;
    uint8_t reserved[12];
};

struct media_resource {
    float jpegd, jpege, vpc, vdec, pngd, venc;
    uint8_t reserved[32];
};

struct total_resource {
    uint32_t vdev_num;
    uint32_t vdev_id[DCMI_MAX_VDEV];
    uint32_t vfg_num, vfg_bitmap;
    struct base_resource base;
    struct computing_resource computing;
    struct media_resource media;
};

struct free_resource {
    uint32_t vfg_num, vfg_bitmap;
    struct base_resource base;
    struct computing_resource computing;
    struct media_resource media;
};

struct create_vdev_res {
    uint32_t vdev_id, vfg_id;
    char template_name[32];
    uint8_t reserved[64];
};

struct create_vdev_out {
    uint32_t vdev_id, pcie_bus, pcie_device, pcie_func, vfg_id;
    uint8_t reserved[32];
};

struct vdev_info {
    char name[16];
    uint32_t status, is_container_used, vfid, vfg_id;
    uint64_t container_id;
    struct base_resource base;
    struct computing_resource computing;
    struct media_resource media;
};

struct vdev_query {
    uint32_t vdev_id;
    struct vdev_info query_info;
};

struct fault_event {
    uint32_t event_id;
    uint16_t deviceid;
    uint8_t node_type, node_id, sub_node_type, sub_node_id, severity, assertion;
    int32_t event_serial_num, notify_serial_num;
    uint64_t alarm_raised_time;
    char event_name[256];
    char additional_info[32];
    uint8_t resv[32];
};

struct event {
    int type;
    struct fault_event dms_event;
};

struct event_filter {
    uint64_t filter_flag;
    uint32_t event_id;
    uint8_t severity;
    uint8_t node_type;
    uint8_t resv[32];
};

struct proc_mem_info {
    int proc_id;
    unsigned long proc_mem_usage;
};

enum { DCMI_INBAND = 1 };
enum { DCMI_STARTED = 16 };
enum { DCMI_MAX_PROCESSES = 64 };

typedef void (*event_handler)(struct event *);

int dcmi_init(void);
int dcmi_get_dcmi_version(char *version, unsigned int size);
int dcmi_get_card_list(int *count, int *cards, int size);
int dcmi_get_device_num_in_card(int card, int *count);
int dcmi_get_device_logic_id(int *logic, int card, int device);
int dcmi_get_device_phyid_from_logicid(unsigned int logic, unsigned int *phy);
int dcmi_get_device_chip_info_v2(int card, int device, struct chip_info_v2 *info);
int dcmi_get_device_chip_info(int card, int device, struct chip_info *info);
int dcmi_get_device_board_info(int card, int device, struct board_info *info);
int dcmi_get_device_hbm_info(int card, int device, struct hbm_info *info);
int dcmi_get_device_ip(int card, int device, int port_type, int port, struct ip_addr *ip, struct ip_addr *mask);
int dcmi_get_device_info(int card, int device, int main, unsigned int sub, void *info, unsigned int *size);
int dcmi_get_affinity_cpu_info_by_device_id(int card, int device, char *cpus, int *size);
int dcmi_get_device_pcie_info_v2(int card, int device, struct pcie_info *info);
int dcmi_get_device_health(int card, int device, unsigned int *health);
int dcmi_get_device_errorcode_v2(int card, int device, int *count, unsigned int *codes, unsigned int size);
int dcmi_get_device_utilization_rate(int card, int device, int kind, unsigned int *percent);
int dcmi_get_device_temperature(int card, int device, int *temperature);
int dcmi_get_device_power_info(int card, int device, int *power);
int dcmi_get_device_voltage(int card, int device, unsigned int *voltage);
int dcmi_get_device_frequency(int card, int device, int kind, unsigned int *frequency);
int dcmi_get_device_network_health(int card, int device, unsigned int *result);
int dcmi_get_device_die_v2(int card, int device, int type, struct die_id *die);
int dcmi_set_multi_die_policy(int policy);
int dcmi_get_device_resource_info(int card, int device, struct proc_mem_info *processes, int *count);
int dcmi_get_device_boot_status(int card, int device, int *status);
int dcmi_get_netdev_brother_device(int card, int device, int *brother);
int dcmi_set_device_reset(int card, int device, int channel);
int dcmi_create_vdevice(int card, int device, struct create_vdev_res *wanted, struct create_vdev_out *created);
int dcmi_set_destroy_vdevice(int card, int device, unsigned int vdev_id);
int dcmi_subscribe_fault_event(int card, int device, struct event_filter filter, event_handler handler);

#endif
