// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

/// Recipient is a target of forwarded requests. It counts calls by id, and records the sender of each: the signer of a
/// request that its forwarder executed, or else the caller.
contract Recipient {
    /// One for each recorded call, with the count that it led to.
    event Recorded(bytes32 indexed id, address indexed sender, uint256 count, uint256 value);

    address private immutable forwarder;

    /// How often each id was recorded.
    mapping(bytes32 => uint256) public count;

    /// The sender of the last call with each id.
    mapping(bytes32 => address) public senderOf;

    /// The sender of the last call.
    address public lastSender;

    /// One more than the number of recorded calls, so that the first call costs as much as later ones.
    uint256 private calls = 1;

    constructor(address forwarder_) {
        forwarder = forwarder_;
    }

    /// Reports whether the address may name the sender of a call (ERC-2771).
    function isTrustedForwarder(address forwarder_) public view returns (bool) {
        return forwarder_ == forwarder;
    }

    /// Records a call.
    function record(bytes32 id) public payable {
        address sender = _msgSender();
        uint256 n = ++count[id];
        senderOf[id] = sender;
        lastSender = sender;
        ++calls;
        emit Recorded(id, sender, n, msg.value);
    }

    /// Records a call, and uses gas until no more than left is left.
    function recordAndBurn(bytes32 id, uint256 left) external payable {
        record(id);
        while (gasleft() > left) {}
    }

    /// Reverts with a reason.
    function fail(string calldata reason) external payable {
        revert(reason);
    }

    /// Returns the number of recorded calls.
    function total() external view returns (uint256) {
        return calls - 1;
    }

    /// Returns the counts of many ids, all as of one block.
    function counts(bytes32[] calldata ids) external view returns (uint256[] memory result) {
        result = new uint256[](ids.length);
        for (uint256 i = 0; i < ids.length; ++i) {
            result[i] = count[ids[i]];
        }
    }

    /// Returns the last 20 bytes of the call data of a call by the forwarder, and the caller of any other.
    function _msgSender() private view returns (address) {
        if (isTrustedForwarder(msg.sender) && msg.data.length >= 20) {
            return address(bytes20(msg.data[msg.data.length - 20:]));
        }
        return msg.sender;
    }
}
